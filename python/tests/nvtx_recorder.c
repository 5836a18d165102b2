/* A profiler's side of NVTX 3, as NVIDIA's headers describe it: writes ranges to the file $NVTX_RECORD, a line each.
 * Built by test_nvtx.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Callback)(void);
typedef Callback **Table;

typedef struct {
    size_t struct_size;
    int (*get_module)(int module, Table *table, unsigned *size);
} Callbacks;

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Event;

enum { CORE = 1, CORE2 = 5, SYNC = 6 };
enum { PUSH_EX = 4, POP = 5, CREATE_DOMAIN = 12, CORE2_SIZE = 16 };

static FILE *record;
static char domain_of_ours;

static void *create_domain(const char *name) {
    fprintf(record, "domain %s\n", name);
    return &domain_of_ours;
}

static int push(void *domain, const Event *event) {
    int is_known = domain == &domain_of_ours && event->version == 3 && event->size == sizeof(Event) && event->message_type == 1;
    fprintf(record, "%s %s\n", is_known ? "push" : "WRONG", event->message);
    fflush(record);
    return 0;
}

static int pop(void *domain) {
    fprintf(record, domain == &domain_of_ours ? "pop\n" : "WRONG pop\n");
    fflush(record);
    return 0;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id)) {
    const Callbacks *callbacks = export_table(1);
    const size_t *version = export_table(3);
    Table table;
    unsigned size;
    record = fopen(getenv("NVTX_RECORD"), "a");
    if (!record || callbacks->struct_size < sizeof(Callbacks) || *version < 24 || export_table(2)) return 0;
    for (int module = CORE; module <= SYNC; module++) {
        if (!callbacks->get_module(module, &table, &size) || table[0] || table[size]) return 0;
        for (unsigned id = 1; id < size; id++)
            if (!table[id]) return 0;
    }
    if (callbacks->get_module(0, &table, &size) || callbacks->get_module(7, &table, &size)) return 0;
    if (!callbacks->get_module(CORE2, &table, &size) || size != CORE2_SIZE) return 0;
    *table[CREATE_DOMAIN] = (Callback)create_domain;
    *table[PUSH_EX] = (Callback)push;
    *table[POP] = (Callback)pop;
    return getenv("NVTX_REFUSE") == NULL;
}
