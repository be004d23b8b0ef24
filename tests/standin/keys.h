/* What the file of the machine says, and how a GPU misbehaves. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { NOT_LOADED = 9, LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { KEY = 160, DEVICES = 256 };

typedef unsigned long long ull;
typedef struct device { char prefix[32]; struct device *parent; unsigned index; ull calls; } device;
typedef struct { char *key, *value; size_t order; } entry;

static int users;
static device devices[DEVICES];
static size_t devices_made, entries_read;
static entry *entries;

/* Keys */

static int by_key(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int difference = strcmp(x->key, y->key);
    return difference ? difference : (x->order > y->order) - (x->order < y->order);
}

static int same_key(const void *key, const void *one) { return strcmp(key, ((const entry *)one)->key); }

static void add_line(char *line, int late) {
    if (!strncmp(line, "late ", 5)) {
        if (!late) return;
        line += 5;
    }
    char *equals = strchr(line, '=');
    if (!equals) return;
    *equals = 0;
    equals[1 + strcspn(equals + 1, "\n")] = 0;
    entries = realloc(entries, (entries_read + 1) * sizeof *entries);
    entries[entries_read] = (entry){strdup(line), strdup(equals + 1), entries_read};
    entries_read++;
}

static int read_machine(void) {
    const char *path = getenv("PREFLIGHT_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char late[4096], line[4096];
    if (!file) return 0;
    snprintf(late, sizeof late, "%s.late", path);
    int is_late = access(late, F_OK) == 0;
    for (size_t i = 0; i < entries_read; i++) free(entries[i].key), free(entries[i].value);
    entries_read = 0;
    while (fgets(line, sizeof line, file)) add_line(line, is_late);
    fclose(file);
    qsort(entries, entries_read, sizeof *entries, by_key);
    size_t kept = 0;
    for (size_t i = 0; i < entries_read; i++) {
        if (kept && !strcmp(entries[kept - 1].key, entries[i].key)) { /* the later line holds */
            free(entries[kept - 1].key), free(entries[kept - 1].value);
            kept--;
        }
        entries[kept++] = entries[i];
    }
    entries_read = kept;
    return 1;
}

static int find(const char **value, const char *key) {
    const entry *found = entries_read ? bsearch(key, entries, entries_read, sizeof *entries, same_key) : NULL;
    if (!found) return NOT_SUPPORTED;
    *value = found->value;
    return found->value[0] == '!' ? atoi(found->value + 1) : OK;
}

/* The value of a device's key, or of the machine's where there is no device. */
static int text(const device *d, const char **value, const char *format, ...) {
    char key[KEY];
    int length = snprintf(key, sizeof key, "%s", d ? d->prefix : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key + length, sizeof key - length, format, arguments);
    va_end(arguments);
    return find(value, key);
}

static ull parsed(const char *value) { return *value == '-' ? (ull)strtoll(value, NULL, 0) : strtoull(value, NULL, 0); }

/* The same as a number, into a variable of any type. */
#define NUMBER_AT(d, out, ...) __extension__({ \
    const char *value_; \
    int code_ = text(d, &value_, __VA_ARGS__); \
    if (code_ == OK) *(out) = (__typeof__(*(out)))parsed(value_); \
    code_; \
})

static ull number_or(const device *d, const char *key, ull otherwise) {
    const char *value;
    return text(d, &value, "%s", key) == OK ? parsed(value) : otherwise;
}

static int copy(const device *d, char *out, unsigned length, const char *key) {
    const char *value;
    int code = text(d, &value, "%s", key);
    if (code != OK) return code;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

/* Behaviour */

static void hang(void) { for (;;) pause(); }

static void nap(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left)) {}
}

/* The place after the name of a function in a list of names, NULL if it is not in it. A name may end with `*`. */
static const char *listed(const char *list, const char *function) {
    for (const char *name = list; *name; name += strspn(name, ",")) {
        size_t length = strcspn(name, ":,");
        int starts = length && name[length - 1] == '*';
        if (!(length == 1 && starts && !strcmp(function, "handle")) &&
            (starts ? !strncmp(name, function, length - 1)
                    : strlen(function) == length && !strncmp(name, function, length)))
            return name + length;
        name += strcspn(name, ",");
    }
    return NULL;
}

static void behave(const device *d, const char *function) {
    const char *list, *at;
    if (text(d, &list, "slow") == OK && (at = listed(list, function)) && *at == ':') nap(strtod(at + 1, NULL));
    if (text(d, &list, "hang") == OK && listed(list, function)) hang();
}

/* A lost GPU is lost for the processes after this one too: a file says so. */
static int is_lost(const device *d, int now) {
    char path[4096];
    snprintf(path, sizeof path, "%s.lost.%u", getenv("PREFLIGHT_STANDIN"), d->index);
    if (now) {
        FILE *file = fopen(path, "w");
        if (file) fclose(file);
    }
    return now || access(path, F_OK) == 0;
}

static int enter(device *d, const char *function) {
    const char *value;
    ull limit = 0;
    int code;
    if (!users) return UNINITIALIZED;
    if (d < devices || d >= devices + devices_made) return INVALID_ARGUMENT;
    behave(d, function);
    if (NUMBER_AT(d, &limit, "lost_after") == OK && is_lost(d, ++d->calls >= limit)) return LOST;
    code = text(d, &value, "calls");
    return code == NOT_SUPPORTED ? OK : code;
}

#define ENTER(d) do { int entered_ = enter(d, __func__); if (entered_ != OK) return entered_; } while (0)
