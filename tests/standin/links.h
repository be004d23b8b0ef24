/* NVLink, the fabric, fields by number and the topology. */
/* A link beyond the last is an invalid argument; a card without NVLink supports none of the calls. */
static int link_of(const device *d, unsigned link, const char *limit_key) {
    ull links;
    int code = NUMBER_AT(d, &links, "%s", limit_key);
    return code != OK ? code : link < links ? OK : INVALID_ARGUMENT;
}

static int active_link_of(const device *d, unsigned link) {
    unsigned state = 0;
    int code = link_of(d, link, "links");
    if (code == OK) code = NUMBER_AT(d, &state, "link.%u.state", link);
    return code != OK ? code : state ? OK : NOT_SUPPORTED;
}

#define LINK(function, type, condition, key) \
    int function(device *d, unsigned link, type *out) { \
        ENTER(d); \
        int code = condition; \
        return code != OK ? code : NUMBER_AT(d, out, key, link); \
    }

LINK(nvmlDeviceGetNvLinkState, unsigned, link_of(d, link, "links"), "link.%u.state")
LINK(nvmlDeviceGetNvLinkVersion, unsigned, link_of(d, link, "links"), "link.%u.version")
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, unsigned, active_link_of(d, link), "link.%u.remote.type")

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci_info *out) {
    char key[KEY];
    ENTER(d);
    int code = active_link_of(d, link);
    snprintf(key, sizeof key, "link.%u.remote", link);
    return code != OK ? code : pci(d, out, key);
}

int nvmlDeviceGetNvLinkCapability(device *d, unsigned link, unsigned capability, unsigned *out) {
    ENTER(d);
    int code = link_of(d, link, number_or(d, "links.capable", 0) ? "links.capable" : "links");
    if (code != OK) return code;
    return capability > 5 ? INVALID_ARGUMENT : NUMBER_AT(d, out, "link.%u.capability.%u", link, capability);
}

int nvmlDeviceGetNvLinkErrorCounter(device *d, unsigned link, unsigned counter, ull *out) {
    ENTER(d);
    int code = link_of(d, link, "links");
    if (code != OK) return code;
    return counter > 4 ? INVALID_ARGUMENT : NUMBER_AT(d, out, "link.%u.error.%s", link, link_errors[counter]);
}

/* The fabric */

typedef struct { unsigned char cluster[16]; unsigned status, clique, state; } fabric_v1;
typedef struct { unsigned version; fabric_v1 fabric; unsigned health; } fabric_v2;
typedef struct { fabric_v2 fabric; unsigned char summary; } fabric_v3;

static int fabric(const device *d, fabric_v1 *out) {
    const char *cluster;
    int code = NUMBER_AT(d, &out->state, "fabric.state");
    if (code != OK) return code;
    out->status = (unsigned)number_or(d, "fabric.status", 0);
    out->clique = (unsigned)number_or(d, "fabric.clique", 0);
    memset(out->cluster, 0, sizeof out->cluster);
    if (text(d, &cluster, "fabric.cluster") == OK)
        for (size_t i = 0; i < 16 && cluster[2 * i] && cluster[2 * i + 1]; i++) {
            unsigned byte = 0;
            sscanf(cluster + 2 * i, "%2x", &byte);
            out->cluster[i] = (unsigned char)byte;
        }
    return OK;
}

int nvmlDeviceGetGpuFabricInfo(device *d, fabric_v1 *out) { ENTER(d); return fabric(d, out); }

int nvmlDeviceGetGpuFabricInfoV(device *d, fabric_v2 *out) {
    ENTER(d);
    int is_v3 = out->version == 0x03000028 && number_or(NULL, "fabric.versions", 3) >= 3;
    if (!is_v3 && out->version != 0x02000024) return VERSION_MISMATCH;
    int code = fabric(d, &out->fabric);
    if (code != OK) return code;
    out->health = (unsigned)number_or(d, "fabric.health", 0);
    if (is_v3) ((fabric_v3 *)out)->summary = (unsigned char)number_or(d, "fabric.summary", 0);
    return OK;
}

/* Fields */

typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency;
    uint32_t type, code;
    union { double real; unsigned u; ull all; int i; unsigned short s; } value;
} field_value;

static int set_field(const device *d, field_value *field) {
    static const char *const types[] = {"double", "uint", "ulong", "ull", "ll", "int", "ushort"};
    const char *value;
    char key[KEY], exact[KEY];
    snprintf(exact, sizeof exact, "%sfield.%u.%u", d->prefix, field->id, field->scope);
    snprintf(key, sizeof key, "%sfield.%u", d->prefix, field->id);
    int code = find(&value, exact);
    if (code == NOT_SUPPORTED) code = find(&value, key);
    field->value.all = 0;
    if (field->id >= number_or(NULL, "fields", ~0ull)) return INVALID_ARGUMENT;
    if (code != OK) return code;
    const char *space = strchr(value, ' ');
    field->type = 1;
    for (uint32_t i = 0; space && i < 7; i++)
        if (strlen(types[i]) == (size_t)(space - value) && !strncmp(types[i], value, strlen(types[i]))) field->type = i;
    if (space) value = space + 1;
    if (field->type == 0) field->value.real = strtod(value, NULL);
    else if (field->type == 1) field->value.u = (unsigned)parsed(value);
    else if (field->type == 5) field->value.i = (int)parsed(value);
    else if (field->type == 6) field->value.s = (unsigned short)parsed(value);
    else field->value.all = parsed(value);
    return OK;
}

int nvmlDeviceGetFieldValues(device *d, int count, field_value *fields) {
    ENTER(d);
    if (count <= 0) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) fields[i].code = (uint32_t)set_field(d, &fields[i]);
    return OK;
}

/* Topology */

int nvmlDeviceGetTopologyCommonAncestor(device *d, device *peer, unsigned *out) {
    ENTER(d);
    ENTER(peer);
    return NUMBER_AT(d, out, "topology.%u", peer->index);
}

int nvmlDeviceGetP2PStatus(device *d, device *peer, unsigned reach, unsigned *out) {
    ENTER(d);
    ENTER(peer);
    if (reach >= sizeof peer_reaches / sizeof *peer_reaches) return INVALID_ARGUMENT;
    int code = NUMBER_AT(d, out, "p2p.%u.%s", peer->index, peer_reaches[reach]);
    return d == peer && code == NOT_SUPPORTED ? INVALID_ARGUMENT : code;
}

static int affinity(const device *d, const char *key, unsigned size, unsigned long *set) {
    const char *list;
    int code = text(d, &list, "%s", key), used;
    unsigned first, last;
    if (code != OK) return code;
    if (!size) return INVALID_ARGUMENT;
    memset(set, 0, size * sizeof *set);
    for (; sscanf(list, "%u%n", &first, &used) == 1; list += *list == ',') {
        list += used;
        last = first;
        if (*list == '-' && sscanf(list, "-%u%n", &last, &used) == 1) list += used;
        for (; first <= last; first++)
            if (first / 64 < size) set[first / 64] |= 1ul << first % 64;
    }
    return OK;
}

int nvmlDeviceGetCpuAffinity(device *d, unsigned size, unsigned long *out) {
    ENTER(d);
    return affinity(d, "affinity.cpus", size, out);
}

int nvmlDeviceGetMemoryAffinity(device *d, unsigned size, unsigned long *out, unsigned scope) {
    ENTER(d);
    return scope > 1 ? INVALID_ARGUMENT : affinity(d, "affinity.memory", size, out);
}

int nvmlDeviceGetCpuAffinityWithinScope(device *d, unsigned size, unsigned long *out, unsigned scope) {
    ENTER(d);
    int code = scope == 1 ? affinity(d, "affinity.cpus.socket", size, out) : NOT_SUPPORTED;
    return scope > 1 ? INVALID_ARGUMENT : code == NOT_SUPPORTED ? affinity(d, "affinity.cpus", size, out) : code;
}
