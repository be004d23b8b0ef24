/* A stand-in for the part of libnccl.so.2 that gives parameters (src/param/c_api.cc of NCCL 2.30). What an environment
   plugin would set is in PLUGIN_NAME; PLUGIN_HANGS and PLUGIN_CRASHES are what loading one does. */
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>

int ncclGetVersion(int *version)
{
    const char *code = getenv("STANDIN_NCCL_VERSION");
    *version = code ? atoi(code) : 23203;
    return 0;
}

static const char *keys[] = {"NCCL_CROSS_NIC", "NCCL_DEBUG", "NCCL_PARAM_DUMP_ALL"};

int ncclParamGetAllParameterKeys(const char ***table, int *length)
{
    if (getenv("PLUGIN_HANGS"))
        pause();
    if (getenv("PLUGIN_CRASHES"))
        abort();
    *table = keys;
    *length = getenv("NCCL_PARAM_DUMP_ALL") ? 3 : 2;
    return 0;
}

int ncclParamGetParameter(const char *key, const char **value, int *length)
{
    static char name[64];
    snprintf(name, sizeof name, "PLUGIN_%s", key);
    const char *set = getenv(name) ? getenv(name) : getenv(key);
    *value = set ? set : "<unset>";
    *length = (int)strlen(*value);
    return 0;
}
