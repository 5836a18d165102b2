// The memory table: allocations with guard bytes and poison, pinned and registered host memory, and
// what pointers say of themselves.

#include <sys/mman.h>

#include "sim.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, size) ((void)(p), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(p, size) ((void)(p), (void)(size))
#endif

namespace cudasim {

std::map<uintptr_t, Allocation>& allocations = *new std::map<uintptr_t, Allocation>;

Allocation* find_memory(uintptr_t p, uintptr_t* base) {
    auto i = allocations.upper_bound(p);
    if (i == allocations.begin()) return nullptr;
    --i;
    if (base) *base = i->first;
    return p - i->first < i->second.size ? &i->second : nullptr;
}

bool in_one_allocation(uintptr_t p, size_t size) {
    uintptr_t base;
    auto* allocation = find_memory(p, &base);
    return allocation && size <= allocation->size - (p - base);
}

uint64_t new_buffer_id() {
    static uint64_t last;
    return ++last;
}

// ---- guards and poison -----------------------------------------------------------------------

constexpr size_t kGuardBytes = 256;  // on either side, so that memory is aligned to as much
constexpr unsigned char kGuard = 0xFD;

// Memory of the system's and none of malloc's, which takes all later memory of a thread from elsewhere once a request of that thread could
// not be met: allocations of one device would be further apart than on any GPU.
constexpr size_t kSlabBytes = 4 << 20, kLargeBytes = 1 << 20;
// The addresses of slabs, reserved at once for the same reason: a library may reserve more than a GPU has between two of them.
constexpr size_t kReservedBytes = size_t(64) << 30;

static char* from_system(size_t bytes) {
    void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? nullptr : static_cast<char*>(block);
}

/// Blocks below kLargeBytes are parts of slabs, which are kept, and are given out again by their size.
static struct Slabs {
    std::mutex mutex;
    std::map<size_t, std::vector<char*>> free;
    char *next = nullptr, *end = nullptr;
    char *reserved = nullptr, *reserved_end = nullptr;
}& slabs = *new Slabs;

/// The bytes of a block with its guards, as far apart as the guards.
static size_t block_bytes(size_t capacity) {
    return (capacity + 3 * kGuardBytes - 1) / kGuardBytes * kGuardBytes;
}

/// A slab of the reserved addresses; of any others when these are used up or could not be had. The caller holds the lock.
static char* new_slab() {
    if (!slabs.reserved_end) {
        void* reserved = mmap(nullptr, kReservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        slabs.reserved = slabs.reserved_end = static_cast<char*>(reserved);
        if (reserved != MAP_FAILED) slabs.reserved_end += kReservedBytes;
    }
    if (slabs.reserved == slabs.reserved_end) return from_system(kSlabBytes);
    char* slab = slabs.reserved;
    if (mprotect(slab, kSlabBytes, PROT_READ | PROT_WRITE)) return nullptr;
    slabs.reserved += kSlabBytes;
    return slab;
}

static char* new_block(size_t bytes) {
    if (bytes >= kLargeBytes) return from_system(bytes);
    std::lock_guard lock(slabs.mutex);
    auto& free = slabs.free[bytes];
    if (!free.empty()) {
        char* block = free.back();
        free.pop_back();
        return block;
    }
    if (size_t(slabs.end - slabs.next) < bytes) {
        char* slab = new_slab();
        if (!slab) return nullptr;
        slabs.next = slab;
        slabs.end = slab + kSlabBytes;
    }
    char* block = slabs.next;
    slabs.next += bytes;
    return block;
}

char* guarded_new(size_t capacity) {
    char* block = new_block(block_bytes(capacity));
    if (!block) return nullptr;
    char* p = block + kGuardBytes;
    memset(block, kGuard, kGuardBytes);
    memset(p, kFreed, capacity);
    memset(p + capacity, kGuard, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(block, capacity + 2 * kGuardBytes);
    return p;
}

void guarded_delete(char* p, size_t capacity) {
    ASAN_UNPOISON_MEMORY_REGION(p - kGuardBytes, capacity + 2 * kGuardBytes);
    size_t bytes = block_bytes(capacity);
    if (bytes >= kLargeBytes) {
        munmap(p - kGuardBytes, bytes);
    } else {
        std::lock_guard lock(slabs.mutex);
        slabs.free[bytes].push_back(p - kGuardBytes);
    }
}

/// The memory that may be touched now: unlike the memory table, in the order of streams. Guarded by a lock of its own.
static struct InUse {
    std::mutex mutex;
    std::map<uintptr_t, size_t> sizes;
}& in_use = *new InUse;

device_code::Reach::Range memory_in_use_at(uintptr_t address) {
    {
        std::lock_guard lock(in_use.mutex);
        auto next = in_use.sizes.upper_bound(address);
        if (next != in_use.sizes.begin()) {
            auto& [base, size] = *--next;
            if (address - base < size) return {base, base + size};
        }
    }
    Guard guard(global);
    uintptr_t base;
    auto* memory = find_memory(address, &base);
    if (!memory || memory->kind != MemoryKind::registered) return {};
    return {base, base + memory->size};
}

static bool holds(const char* p, unsigned char value, size_t size) {
    return !size || ((unsigned char)*p == value && !memcmp(p, p + 1, size - 1));
}

void begin_use(char* p, size_t size, size_t capacity) {
    ASAN_UNPOISON_MEMORY_REGION(p, capacity);
    memset(p, kFresh, size);
    memset(p + size, kGuard, capacity - size);
    ASAN_POISON_MEMORY_REGION(p + size, capacity - size);
    std::lock_guard lock(in_use.mutex);
    in_use.sizes[uintptr_t(p)] = size;
}

static void check_guards(char* p, size_t size, size_t capacity) {
    size_t behind = capacity - size + kGuardBytes;
    ASAN_UNPOISON_MEMORY_REGION(p - kGuardBytes, kGuardBytes);
    ASAN_UNPOISON_MEMORY_REGION(p + size, behind);
    if (!holds(p - kGuardBytes, kGuard, kGuardBytes))
        misuse("write before the allocation of %zu bytes", size);
    if (!holds(p + size, kGuard, behind)) misuse("write past the allocation of %zu bytes", size);
    ASAN_POISON_MEMORY_REGION(p - kGuardBytes, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(p + size, behind);
}

void end_use(char* p, size_t size, size_t capacity) {
    {
        std::lock_guard lock(in_use.mutex);
        in_use.sizes.erase(uintptr_t(p));
    }
    check_guards(p, size, capacity);
    ASAN_UNPOISON_MEMORY_REGION(p - kGuardBytes, capacity + 2 * kGuardBytes);
    memset(p - kGuardBytes, kGuard, kGuardBytes);
    memset(p, kFreed, capacity);
    memset(p + capacity, kGuard, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(p - kGuardBytes, capacity + 2 * kGuardBytes);
}

void check_untouched(const char* p, size_t capacity) {
    ASAN_UNPOISON_MEMORY_REGION(p, capacity);
    if (!holds(p, kFreed, capacity)) misuse("write to freed memory, block of %zu bytes", capacity);
    ASAN_POISON_MEMORY_REGION(p, capacity);
}

/// Memory freed last is kept for a while: late readers find 0xDD there, late writers are noticed.
static auto& quarantine = *new std::deque<std::pair<char*, size_t>>;
static size_t quarantined;

static void retire(char* p, size_t size) {
    constexpr size_t kMaxQuarantined = 16 << 20;
    end_use(p, size, size);
    quarantine.push_back({p, size});
    quarantined += size;
    while (quarantined > kMaxQuarantined) {
        auto [oldest, bytes] = quarantine.front();
        quarantine.pop_front();
        quarantined -= bytes;
        check_untouched(oldest, bytes);
        guarded_delete(oldest, bytes);
    }
}

void check_memory() {
    for (auto [p, size] : quarantine) check_untouched(p, size);
    for (auto& [address, memory] : allocations)
        if (memory.kind != MemoryKind::registered)
            check_guards((char*)address, memory.size, memory.capacity);
}

// ---- allocation ------------------------------------------------------------------------------

static size_t used[4];

bool take_device_memory(int device, size_t size) {
    if (size > device_memory() - used[device]) return false;
    used[device] += size;
    return true;
}

void give_device_memory(int device, size_t size) { used[device] -= size; }
size_t device_memory_used(int device) { return used[device]; }

std::atomic<bool> confidential{false};
static auto& stale = *new std::map<uintptr_t, std::vector<char>>;  // guarded by `global`

void with_stale_mappings(const std::function<void()>& kernel) {
    auto swap_all = [] {
        Guard guard(global);
        for (auto& [address, copy] : stale)
            std::swap_ranges(copy.begin(), copy.end(), reinterpret_cast<char*>(address));
    };
    swap_all();
    kernel();
    swap_all();
}

static bool on_device(const Allocation& memory) {
    return memory.kind == MemoryKind::device || memory.kind == MemoryKind::managed;
}

static CUresult allocate(uintptr_t* result, size_t size, MemoryKind kind, unsigned flags,
                         Context* context) {
    if (!result || !size) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(global);
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    Allocation memory{size, kind, context, context->device, flags, new_buffer_id(), nullptr, size};
    if (on_device(memory) && !take_device_memory(memory.device, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    char* p = guarded_new(size);
    if (!p) {
        if (on_device(memory)) give_device_memory(memory.device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    begin_use(p, size, size);
    *result = uintptr_t(p);
    allocations[*result] = memory;
    if (confidential && kind == MemoryKind::pinned) stale[*result].assign(p, p + size);
    return CUDA_SUCCESS;
}

static void drop(std::map<uintptr_t, Allocation>::iterator entry) {
    auto& [address, memory] = *entry;
    if (on_device(memory)) give_device_memory(memory.device, memory.size);
    if (memory.kind != MemoryKind::registered) retire((char*)address, memory.size);
    stale.erase(address);
    allocations.erase(entry);
}

/// A synchronising free. Waiting is done before it, without the lock.
static CUresult release(uintptr_t p, bool host, Context* context) {
    if (!p) return CUDA_SUCCESS;
    {
        Guard guard(global);
        if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    }
    wait_for_all(context);
    Guard guard(global);
    auto entry = allocations.find(p);
    bool known = entry != allocations.end() && entry->second.on_host() == host &&
                 entry->second.kind != MemoryKind::registered;
    if (!known) {
        misuse("free of an address that is not allocated: %#zx", p);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (entry->second.pool) return free_pooled(entry, nullptr);
    drop(entry);
    return CUDA_SUCCESS;
}

void drop_memory_of(const Context* context) {
    for (auto i = allocations.begin(); i != allocations.end();) {
        auto entry = i++;
        auto& memory = entry->second;
        if (memory.pool) {
            if (memory.device == context->device) free_pooled(entry, nullptr);
        } else if (memory.context == context) {
            drop(entry);
        }
    }
    drop_pools_of(context);
}

}  // namespace cudasim

using namespace cudasim;

API cuMemAlloc_v2(CUdeviceptr* p, size_t size) {
    ENTER_CONTEXT(context, nullptr);
    return allocate((uintptr_t*)p, size, MemoryKind::device, 0, context);
}

API cuMemAllocManaged(CUdeviceptr* p, size_t size, unsigned flags) {
    ENTER_CONTEXT(context, nullptr);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate((uintptr_t*)p, size, MemoryKind::managed, flags, context);
}

API cuMemHostAlloc(void** p, size_t size, unsigned flags) {
    ENTER_CONTEXT(context, nullptr);
    if (flags > 7) return CUDA_ERROR_INVALID_VALUE;
    return allocate((uintptr_t*)p, size, MemoryKind::pinned, flags, context);
}

API cuMemAllocHost_v2(void** p, size_t size) {
    ENTER_CONTEXT(context, nullptr);
    return allocate((uintptr_t*)p, size, MemoryKind::pinned, 0, context);
}

API cuMemFree_v2(CUdeviceptr p) {
    ENTER_RELEASE(context, nullptr);
    CUresult released = release(p, false, context);
    return released ? released : code;
}

API cuMemFreeHost(void* p) {
    ENTER_RELEASE(context, nullptr);
    CUresult released = release(uintptr_t(p), true, context);
    return released ? released : code;
}

API cuMemGetInfo_v2(size_t* available, size_t* total) {
    ENTER_CONTEXT(context, nullptr);
    Guard guard(global);
    *total = device_memory();
    *available = *total - device_memory_used(context->device);
    return CUDA_SUCCESS;
}

// ---- host memory -----------------------------------------------------------------------------

API cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* p, unsigned flags) {
    ENTER_CONTEXT(context, nullptr);
    Guard guard(global);
    auto* memory = find_memory(uintptr_t(p));
    if (!memory || !memory->on_host() || flags) return CUDA_ERROR_INVALID_VALUE;
    *device = CUdeviceptr(p);
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned* flags, void* p) {
    ENTER_CONTEXT(context, nullptr);
    Guard guard(global);
    auto* memory = find_memory(uintptr_t(p));
    if (!memory || memory->kind != MemoryKind::pinned) return CUDA_ERROR_INVALID_VALUE;
    *flags = memory->flags;
    return CUDA_SUCCESS;
}

API cuMemHostRegister_v2(void* p, size_t size, unsigned flags) {
    ENTER_CONTEXT(context, nullptr);
    auto address = uintptr_t(p);
    if (!p || !size || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    if (confidential) return CUDA_ERROR_NOT_SUPPORTED;
    Guard guard(global);
    if (CUresult forbidden = forbidden_by_capture()) return forbidden;
    auto next = allocations.lower_bound(address);
    bool overlaps = next != allocations.end() && next->first < address + size;
    if (overlaps || find_memory(address)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    allocations[address] = {size,  MemoryKind::registered, context, context->device,
                            flags, new_buffer_id(),        nullptr, size};
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void* p) {
    ENTER_RELEASE(context, nullptr);
    wait_for_all(context);
    Guard guard(global);
    auto entry = allocations.find(uintptr_t(p));
    if (entry == allocations.end() || entry->second.kind != MemoryKind::registered) {
        misuse("unregistering an address that is not registered: %p", p);
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    drop(entry);
    return code;
}

// ---- pointer attributes ----------------------------------------------------------------------

/// Writes an attribute of `memory`, which is null for memory that CUDA does not know.
static CUresult attribute_of(void* value, CUpointer_attribute attribute, uintptr_t p,
                             const Allocation* memory, uintptr_t base) {
    bool on_host = memory && memory->on_host();
    bool managed = memory && memory->kind == MemoryKind::managed;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *(CUcontext*)value = memory ? handle_of(memory->context) : nullptr;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned*)value = !memory ? 0 : on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *(CUdeviceptr*)value = memory ? p : 0;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            *(uintptr_t*)value = on_host || managed ? p : 0;
            return on_host || managed || !memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            *(uint64_t*)value = memory ? memory->id : 0;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned*)value = 0; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned*)value = managed; return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *(int*)value = memory ? memory->device : -2;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *(uintptr_t*)value = memory ? base : 0;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *(size_t*)value = memory ? memory->size : 0;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPED:
            *(unsigned*)value = memory != nullptr;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            *(CUmemoryPool*)value = memory ? handle_of(memory->pool.get()) : nullptr;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr p) {
    ENTER();
    Guard guard(global);
    uintptr_t base;
    auto* memory = find_memory(p, &base);
    if (!value || !memory) return CUDA_ERROR_INVALID_VALUE;
    return attribute_of(value, attribute, p, memory, base);
}

/// Unlike the above this is no error for memory that CUDA does not know, nor for attributes that a
/// pointer has not: they come back as null.
API cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                           CUdeviceptr p) {
    ENTER();
    if (!count || !attributes || !values) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(global);
    uintptr_t base;
    auto* memory = find_memory(p, &base);
    for (unsigned i = 0; i < count; i++) {
        CUresult result = attribute_of(values[i], attributes[i], p, memory, base);
        if (result == CUDA_ERROR_NOT_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
