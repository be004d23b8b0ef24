/* A stand-in for NVIDIA's management library, for tests. At every nvmlInit it reads the file that PREFLIGHT_STANDIN
 * names: lines `key=value`, which are listed in machines.py. One macro line makes one function; a shape is what a
 * function's arguments look like. Anything that sets, clears or resets is not here on purpose. */
#include "keys.h"

/* The library and the machine */

static int start(void) {
    const char *value;
    double seconds;
    if (!read_machine()) return NOT_LOADED;
    if (text(NULL, &value, "init.slow") == OK && (seconds = strtod(value, NULL)) > 0) nap(seconds);
    if (number_or(NULL, "init.hang", 0)) hang();
    int code = text(NULL, &value, "init");
    if (code != OK && code != NOT_SUPPORTED) return code;
    users++;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return start(); }
int nvmlInit_v2(void) { return start(); }
int nvmlInit(void) { return start(); }
int nvmlShutdown(void) { return users ? users--, OK : UNINITIALIZED; }

const char *nvmlErrorString(int code) {
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client",
        "Insufficient Memory", "No data", "ECC not supported on vGPU", "Insufficient resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated", "Not ready", "GPU not found",
        "Invalid state", "Reset type not supported"};
    return code >= 0 && (size_t)code < sizeof words / sizeof *words ? words[code] : "Unknown Error";
}

#define SYSTEM_NUMBER(function, type, key) \
    int function(type *out) { return users ? NUMBER_AT(NULL, out, key) : UNINITIALIZED; }
#define SYSTEM_TEXT(function, key) \
    int function(char *out, unsigned length) { return users ? copy(NULL, out, length, key) : UNINITIALIZED; }

SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml")
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion, int, "cuda")
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion_v2, int, "cuda")
SYSTEM_NUMBER(nvmlDeviceGetCount_v2, unsigned, "count")
SYSTEM_NUMBER(nvmlGetExcludedDeviceCount, unsigned, "excluded.count")

/* Handles */

static device *device_of(const char *prefix, device *parent, unsigned index) {
    for (size_t i = 0; i < devices_made; i++)
        if (!strcmp(devices[i].prefix, prefix)) return &devices[i];
    if (devices_made == DEVICES) return NULL;
    device *d = &devices[devices_made++];
    snprintf(d->prefix, sizeof d->prefix, "%s", prefix);
    d->parent = parent;
    d->index = index;
    return d;
}

static int look_up(device **out, unsigned index) {
    char prefix[32];
    const char *value;
    ull limit;
    if (!users) return UNINITIALIZED;
    if (index >= number_or(NULL, "count", 0)) return INVALID_ARGUMENT;
    snprintf(prefix, sizeof prefix, "gpu.%u.", index);
    device *d = device_of(prefix, NULL, index);
    if (!d) return INVALID_ARGUMENT;
    behave(d, "handle");
    int code = text(d, &value, "handle");
    if (code != OK && code != NOT_SUPPORTED) return code;
    if (NUMBER_AT(d, &limit, "lost_after") == OK && is_lost(d, 0)) return LOST;
    *out = d;
    return OK;
}

static int look_up_instance(device **out, device *parent, unsigned index) {
    char prefix[32];
    const char *value;
    if (index >= number_or(parent, "mig.max", 0)) return INVALID_ARGUMENT;
    if (text(parent, &value, "mig.%u.uuid", index) != OK) return NOT_FOUND;
    snprintf(prefix, sizeof prefix, "%.16smig.%u.", parent->prefix, index);
    return (*out = device_of(prefix, parent, index)) ? OK : INVALID_ARGUMENT;
}

/* The GPU, or the MIG instance, whose key has this value. */
static int look_up_by(device **out, const char *key, const char *wanted) {
    char prefix[32];
    const char *value;
    ull count = number_or(NULL, "count", 0);
    for (unsigned i = 0; i < count; i++) {
        snprintf(prefix, sizeof prefix, "gpu.%u.", i);
        device *parent = device_of(prefix, NULL, i);
        if (text(parent, &value, "%s", key) == OK && !strcasecmp(value, wanted)) return look_up(out, i);
        for (unsigned j = 0; j < number_or(parent, "mig.max", 0); j++)
            if (text(parent, &value, "mig.%u.%s", j, key) == OK && !strcasecmp(value, wanted))
                return look_up_instance(out, parent, j);
    }
    return users ? NOT_FOUND : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) { return look_up(out, index); }
int nvmlDeviceGetHandleByUUID(const char *uuid, device **out) { return look_up_by(out, "uuid", uuid); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **out) { return look_up_by(out, "pci.bus", bus); }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    ENTER(d);
    return look_up_instance(out, d, index);
}

int nvmlDeviceIsMigDeviceHandle(device *d, unsigned *out) { ENTER(d); *out = d->parent != NULL; return OK; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **out) {
    ENTER(d);
    if (!d->parent) return INVALID_ARGUMENT;
    *out = d->parent;
    return OK;
}

/* Shapes of functions: (handle, one or two results), and (handle, which, result) */

#define NUMBER(function, type, key) int function(device *d, type *out) { ENTER(d); return NUMBER_AT(d, out, key); }
#define TEXT(function, key) \
    int function(device *d, char *out, unsigned length) { ENTER(d); return copy(d, out, length, key); }
#define TWO(function, type, first_key, second_key) \
    int function(device *d, type *first, type *second) { \
        ENTER(d); \
        int code = NUMBER_AT(d, first, first_key); \
        return code != OK ? code : NUMBER_AT(d, second, second_key); \
    }
#define NAMED(function, type, names, format) \
    int function(device *d, unsigned which, type *out) { \
        ENTER(d); \
        if (which >= sizeof names / sizeof *names) return INVALID_ARGUMENT; \
        return NUMBER_AT(d, out, format, names[which]); \
    }

static const char *const clocks[] = {"graphics", "sm", "memory", "video"};
static const char *const sensors[] = {"temperature"};
static const char *const thresholds[] = {
    "shutdown", "slowdown", "memory_max", "gpu_max", "acoustic_min", "acoustic_current", "acoustic_max", "gps"};
static const char *const errors[] = {"corrected", "uncorrected"};
static const char *const counters[] = {"volatile", "aggregate"};
static const char *const link_errors[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
static const char *const peer_reaches[] = {"read", "write", "nvlink", "atomics", "prop", "unknown"};

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom.image")
NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetModuleId, unsigned, "module_id")
NUMBER(nvmlDeviceGetArchitecture, unsigned, "architecture")
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode")
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, "virtualization")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig.max")
TWO(nvmlDeviceGetMigMode, unsigned, "mig.mode", "mig.pending")
TWO(nvmlDeviceGetDriverModel, unsigned, "driver_model", "driver_model")
TWO(nvmlDeviceGetDriverModel_v2, unsigned, "driver_model", "driver_model")
TWO(nvmlDeviceGetEccMode, unsigned, "ecc.mode", "ecc.pending")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired.pending")
NUMBER(nvmlDeviceGetPerformanceState, unsigned, "pstate")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, ull, "reasons")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, ull, "reasons")
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, ull, "reasons.supported")
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, ull, "reasons.supported")
NAMED(nvmlDeviceGetTemperature, unsigned, sensors, "%s")
NAMED(nvmlDeviceGetTemperatureThreshold, unsigned, thresholds, "temperature.threshold.%s")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power.usage")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power.enforced")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, "power.limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power.default")
TWO(nvmlDeviceGetPowerManagementLimitConstraints, unsigned, "power.min", "power.max")
NAMED(nvmlDeviceGetClockInfo, unsigned, clocks, "clock.%s")
NAMED(nvmlDeviceGetMaxClockInfo, unsigned, clocks, "clock.max.%s")
NAMED(nvmlDeviceGetApplicationsClock, unsigned, clocks, "clock.application.%s")
NAMED(nvmlDeviceGetDefaultApplicationsClock, unsigned, clocks, "clock.default.%s")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie.generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie.width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie.max.generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie.max.width")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "pcie.gpu_max.generation")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie.replay")
NUMBER(nvmlDeviceGetPcieSpeed, unsigned, "pcie.speed")
NUMBER(nvmlDeviceGetNumaNodeId, int, "numa")
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, "memory.bus")

typedef struct { unsigned gpu, memory; } utilization;

int nvmlDeviceGetUtilizationRates(device *d, utilization *out) {
    ENTER(d);
    out->memory = (unsigned)number_or(d, "utilization.memory", 0);
    return NUMBER_AT(d, &out->gpu, "utilization.gpu");
}

static const char *const ways[] = {"tx", "rx"};
NAMED(nvmlDeviceGetPcieThroughput, unsigned, ways, "pcie.%s")

int nvmlDeviceValidateInforom(device *d) { const char *value; ENTER(d); return text(d, &value, "inforom.valid"); }

int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    const char *value;
    ENTER(d);
    int code = text(d, &value, "capability");
    return code != OK ? code : sscanf(value, "%d.%d", major, minor) == 2 ? OK : UNKNOWN;
}

/* PCI */

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

static int pci(const device *d, pci_info *out, const char *key) {
    char field[KEY];
    unsigned function = 0;
    memset(out, 0, sizeof *out);
    snprintf(field, sizeof field, "%s.bus", key);
    int code = copy(d, out->bus_id, sizeof out->bus_id, field);
    if (code != OK) return code;
    sscanf(out->bus_id, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff, function & 0xf);
    NUMBER_AT(d, &out->device_id, "%s.device_id", key);
    NUMBER_AT(d, &out->subsystem_id, "%s.subsystem_id", key);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(device *d, pci_info *out) { ENTER(d); return pci(d, out, "pci"); }

typedef struct { pci_info pci; char uuid[80]; } excluded;

int nvmlGetExcludedDeviceInfoByIndex(unsigned index, excluded *out) {
    char key[KEY];
    if (!users) return UNINITIALIZED;
    if (index >= number_or(NULL, "excluded.count", 0)) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "excluded.%u", index);
    int code = pci(NULL, &out->pci, key);
    strcat(key, ".uuid");
    return code != OK ? code : copy(NULL, out->uuid, sizeof out->uuid, key);
}

/* Memory */

typedef struct { ull total, free, used; } memory_v1;
typedef struct { unsigned version; ull total, reserved, free, used; } memory_v2;

static int memory(const device *d, memory_v2 *out) {
    int code = NUMBER_AT(d, &out->total, "memory.total");
    if (code != OK) return code;
    out->used = number_or(d, "memory.used", 0);
    out->reserved = number_or(d, "memory.reserved", 0);
    out->free = out->total - out->used - out->reserved;
    return OK;
}

int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    memory_v2 all;
    ENTER(d);
    int code = memory(d, &all);
    if (code == OK) *out = (memory_v1){all.total, all.free, all.used + all.reserved};
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    ENTER(d);
    return out->version == 0x02000028 ? memory(d, out) : VERSION_MISMATCH;
}

int nvmlDeviceGetBAR1MemoryInfo(device *d, memory_v1 *out) {
    ENTER(d);
    int code = NUMBER_AT(d, &out->total, "bar1.total");
    if (code != OK) return code;
    out->used = number_or(d, "bar1.used", 0);
    out->free = out->total - out->used;
    return OK;
}

/* Errors of the memory */

int nvmlDeviceGetTotalEccErrors(device *d, unsigned error, unsigned counter, ull *out) {
    ENTER(d);
    if (error > 1 || counter > 1) return INVALID_ARGUMENT;
    return NUMBER_AT(d, out, "ecc.%s.%s", counters[counter], errors[error]);
}

typedef struct {
    unsigned version;
    ull aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded, volatile_corrected;
    ull l2, sm, pcie, mcu, other;
    unsigned threshold;
} sram_status;

int nvmlDeviceGetSramEccErrorStatus(device *d, sram_status *out) {
    ENTER(d);
    if (out->version != 0x1000068) return VERSION_MISMATCH;
    int code = NUMBER_AT(d, &out->threshold, "sram.threshold");
    if (code != OK) return code;
    out->aggregate_parity = number_or(d, "sram.aggregate.parity", 0);
    out->aggregate_secded = number_or(d, "sram.aggregate.secded", 0);
    out->aggregate_corrected = number_or(d, "sram.aggregate.corrected", 0);
    out->volatile_parity = number_or(d, "sram.volatile.parity", 0);
    out->volatile_secded = number_or(d, "sram.volatile.secded", 0);
    out->volatile_corrected = number_or(d, "sram.volatile.corrected", 0);
    out->l2 = number_or(d, "sram.bucket.l2", 0);
    out->sm = number_or(d, "sram.bucket.sm", 0);
    out->pcie = number_or(d, "sram.bucket.pcie", 0);
    out->mcu = number_or(d, "sram.bucket.mcu", 0);
    out->other = number_or(d, "sram.bucket.other", 0);
    return OK;
}

int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure) {
    ENTER(d);
    int code = NUMBER_AT(d, corrected, "remapped.corrected");
    if (code == OK) code = NUMBER_AT(d, uncorrected, "remapped.uncorrected");
    if (code == OK) code = NUMBER_AT(d, pending, "remapped.pending");
    return code == OK ? NUMBER_AT(d, failure, "remapped.failure") : code;
}

static int retired_pages(const device *d, unsigned cause, unsigned *count, ull *addresses, ull *times) {
    unsigned pages = 0;
    if (cause > 1) return INVALID_ARGUMENT;
    int code = NUMBER_AT(d, &pages, "retired.%s", cause ? "double" : "single");
    if (code != OK) return code;
    unsigned room = *count;
    *count = pages;
    if (room < pages || (pages && !addresses)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < pages; i++) {
        addresses[i] = 0x1000ull * (i + 1);
        if (times) times[i] = 1700000000ull + i;
    }
    return OK;
}

int nvmlDeviceGetRetiredPages(device *d, unsigned cause, unsigned *count, ull *out) {
    ENTER(d);
    return retired_pages(d, cause, count, out, NULL);
}

int nvmlDeviceGetRetiredPages_v2(device *d, unsigned cause, unsigned *count, ull *out, ull *times) {
    ENTER(d);
    return retired_pages(d, cause, count, out, times);
}

/* Temperature by struct */

typedef struct { unsigned version, sensor; int value; } temperature_v1;
typedef struct { unsigned version; int value; } margin_v1;

int nvmlDeviceGetTemperatureV(device *d, temperature_v1 *out) {
    ENTER(d);
    if (out->version != 0x100000C) return VERSION_MISMATCH;
    return out->sensor ? INVALID_ARGUMENT : NUMBER_AT(d, &out->value, "temperature");
}

int nvmlDeviceGetMarginTemperature(device *d, margin_v1 *out) {
    ENTER(d);
    return out->version == 0x1000008 ? NUMBER_AT(d, &out->value, "temperature.margin") : VERSION_MISMATCH;
}

/* Processes */

typedef struct { unsigned pid; ull memory; unsigned gpu_instance, compute_instance; } process;

static int processes(const device *d, const char *kind, unsigned *count, process *out) {
    const char *list;
    int code = text(d, &list, "processes.%s", kind);
    if (code != OK) return code;
    unsigned room = *count, found = 0;
    for (const char *one = list; *one; one += strspn(one, ",")) {
        const char *bytes = strchr(one, ':');
        if (out && found < room)
            out[found] = (process){(unsigned)atoi(one), bytes && bytes[1] != '-' ? parsed(bytes + 1) : ~0ull,
                                   ~0u, ~0u};
        found++;
        one += strcspn(one, ",");
    }
    *count = found;
    return found > room || (found && !out) ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(function, kind) \
    int function(device *d, unsigned *count, process *out) { ENTER(d); return processes(d, kind, count, out); }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

#include "links.h"
