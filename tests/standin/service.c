/* A process with a name that is looked for, as that of a daemon: called by this name with a process id, it goes to the
 * background and ends with that process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    struct pollfd watched = {(int)syscall(SYS_pidfd_open, count > 1 ? atoi(words[1]) : 0, 0), POLLIN, 0};
    if (watched.fd < 0) return 1;
    pid_t child = fork();
    if (child) return child < 0 || waitpid(child, NULL, 0) != child;
    setsid();
    if (fork()) _exit(0); /* no child of the process that it belongs to */
    int nowhere = open("/dev/null", O_RDWR);
    for (int file = 0; file < 256; file++)
        if (file != watched.fd && file != nowhere) close(file);
    for (int file = 0; file < 3; file++) dup2(nowhere, file);
    poll(&watched, 1, -1);
    return 0;
}
