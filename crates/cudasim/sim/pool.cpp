// Stream-ordered memory: blocks that are freed behind a stream's work and used again.

#include "sim.h"

namespace cudasim {

/// A freed block: free for its own stream at once, for others when that stream has come so far.
struct FreeBlock {
    char* p;
    size_t capacity;
    Ticket freed;
};

struct Pool {
    Context* context;
    int device;
    CUmemoryPool handle;
    bool destroyed = false;
    size_t max_size = 0;
    uint64_t threshold = 0, reserved = 0, used = 0, reserved_high = 0, used_high = 0;
    int reuse[3] = {1, 1, 1};
    std::vector<FreeBlock> blocks;

    /// Gives blocks that are free for everyone back, as long as more than `keep` is reserved.
    void trim(size_t keep) {
        std::erase_if(blocks, [&](FreeBlock& block) {
            if (reserved <= keep || !block.freed.reached()) return false;
            check_untouched(block.p, block.capacity);
            guarded_delete(block.p, block.capacity);
            reserved -= block.capacity;
            give_device_memory(device, block.capacity);
            return true;
        });
    }
};

static auto& pools = *new std::map<CUmemoryPool, std::shared_ptr<Pool>>;
static auto& default_pools = *new std::array<std::shared_ptr<Pool>, 4>;
/// Destroyed pools whose last free still runs.
static auto& dying = *new std::vector<std::shared_ptr<Pool>>;

CUmemoryPool handle_of(const Pool* pool) { return pool ? pool->handle : nullptr; }

static std::shared_ptr<Pool> new_pool(int device, size_t max_size) {
    auto pool = std::make_shared<Pool>();
    pool->context = &context_at(device);
    pool->device = device;
    pool->max_size = max_size;
    pool->handle = CUmemoryPool(new_handle());
    return pools[pool->handle] = pool;
}

static std::shared_ptr<Pool> default_pool(int device) {
    auto& pool = default_pools[device];
    if (!pool) pool = new_pool(device, 0);
    return pool;
}

static bool is_default(const Pool* pool) { return pool == default_pools[pool->device].get(); }

static std::shared_ptr<Pool> find_pool(CUmemoryPool handle) {
    auto i = pools.find(handle);
    return i == pools.end() ? nullptr : i->second;
}

size_t num_pools() {
    size_t n = pools.size();
    for (auto& pool : default_pools) n -= pool != nullptr;
    return n;
}

size_t pooled_bytes() {
    size_t bytes = 0;
    for (auto& [handle, pool] : pools)
        for (auto& block : pool->blocks) bytes += block.capacity;
    return bytes;
}

void trim_pools_on_sync(const Context* context) {
    Guard guard(global);
    for (auto& [handle, pool] : pools)
        if (pool->device == context->device) pool->trim(pool->threshold);
    for (auto& pool : dying) pool->trim(0);
    std::erase_if(dying, [](auto& pool) { return pool->blocks.empty(); });
}

void drop_pools_of(const Context* context) {
    for (auto& [handle, pool] : pools)
        if (pool->device == context->device) pool->trim(0);
    for (auto& pool : dying)
        if (pool->device == context->device) pool->trim(0);
    std::erase_if(dying, [](auto& pool) { return pool->blocks.empty(); });
    std::erase_if(pools, [&](auto& entry) { return entry.second->context == context; });
    default_pools[context->device] = nullptr;
}

/// The smallest free block that fits without wasting more than half.
static bool take_free_block(Pool& pool, size_t size, const StreamPtr& stream, FreeBlock& taken) {
    auto best = pool.blocks.end();
    for (auto i = pool.blocks.begin(); i != pool.blocks.end(); ++i) {
        bool fits = i->capacity >= size && i->capacity / 2 <= size;
        bool free = i->freed.stream == stream || i->freed.reached();
        if (fits && free && (best == pool.blocks.end() || i->capacity < best->capacity)) best = i;
    }
    if (best == pool.blocks.end()) return false;
    taken = *best;
    pool.blocks.erase(best);
    return true;
}

static bool take_new_block(Pool& pool, size_t capacity, FreeBlock& taken) {
    auto fits = [&] { return !pool.max_size || pool.reserved + capacity <= pool.max_size; };
    if (!fits() || !take_device_memory(pool.device, capacity)) {
        pool.trim(0);  // its own unused blocks are the pool's to give for a block of another size
        if (!fits() || !take_device_memory(pool.device, capacity)) return false;
    }
    taken = {guarded_new(capacity), capacity, {}};
    if (!taken.p) {
        give_device_memory(pool.device, capacity);
        return false;
    }
    pool.reserved += capacity;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return true;
}

/// The address is valid at once, the memory only in the order of the stream: it is poisoned there.
static CUresult allocate(CUdeviceptr* p, size_t size, const std::shared_ptr<Pool>& pool,
                         const StreamPtr& stream) {
    if (!p || !size) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult forbidden = forbidden_on(stream)) return forbidden;
    if (stream->context->device != pool->device) return CUDA_ERROR_INVALID_VALUE;
    constexpr size_t kGranularity = 512;
    size_t rounded = (size + kGranularity - 1) / kGranularity * kGranularity;
    FreeBlock block;
    if (rounded < size) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!take_free_block(*pool, rounded, stream, block) && !take_new_block(*pool, rounded, block))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = submit(stream, [block, size] {
        check_untouched(block.p, block.capacity);
        begin_use(block.p, size, block.capacity);
    });
    if (result) {
        pool->blocks.push_back(block);
        return result;
    }
    pool->used += block.capacity;
    pool->used_high = std::max(pool->used_high, pool->used);
    *p = CUdeviceptr(block.p);
    allocations[*p] = {size,          MemoryKind::device, nullptr, pool->device, 0,
                       new_buffer_id(), pool,             block.capacity};
    return CUDA_SUCCESS;
}

CUresult free_pooled(std::map<uintptr_t, Allocation>::iterator entry, const StreamPtr& stream) {
    Allocation memory = entry->second;
    FreeBlock block{(char*)entry->first, memory.capacity, {}};
    Operation end = [block, memory] { end_use(block.p, memory.size, memory.capacity); };
    if (!stream) {
        end();
    } else if (CUresult result = submit(stream, end, &block.freed)) {
        return result;
    }
    memory.pool->used -= memory.capacity;
    memory.pool->blocks.push_back(block);
    if (memory.pool->destroyed) memory.pool->trim(0);
    if (memory.pool->destroyed && !memory.pool->blocks.empty() &&
        std::find(dying.begin(), dying.end(), memory.pool) == dying.end())
        dying.push_back(memory.pool);
    allocations.erase(entry);
    return CUDA_SUCCESS;
}

}  // namespace cudasim

using namespace cudasim;

static CUresult allocate(CUdeviceptr* p, size_t size, CUmemoryPool pool_handle, CUstream handle,
                         Context* context) {
    Guard guard(global);
    StreamPtr stream;
    if (CUresult unknown = find_stream(handle, context, stream)) return unknown;
    auto pool = pool_handle ? find_pool(pool_handle) : default_pool(context->device);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return cudasim::allocate(p, size, pool, stream);
}

API cuMemAllocAsync(CUdeviceptr* p, size_t size, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    return allocate(p, size, nullptr, stream, context);
}

API cuMemAllocFromPoolAsync(CUdeviceptr* p, size_t size, CUmemoryPool pool, CUstream stream) {
    ENTER_CONTEXT(context, stream);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return allocate(p, size, pool, stream, context);
}

API cuMemFreeAsync(CUdeviceptr p, CUstream handle) {
    ENTER_RELEASE(context, handle);
    Guard guard(global);
    StreamPtr stream;
    if (CUresult unknown = find_stream(handle, context, stream)) return unknown;
    auto entry = allocations.find(p);
    if (entry == allocations.end() || !entry->second.pool) {
        misuse("stream-ordered free of an address that no pool has given: %#llx", p);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (CUresult forbidden = forbidden_on(stream)) return forbidden;
    CUresult result = free_pooled(entry, stream);
    return result ? result : code;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    ENTER();
    if (device < 0 || device >= num_devices()) return CUDA_ERROR_INVALID_DEVICE;
    Guard guard(global);
    *pool = default_pool(device)->handle;
    return CUDA_SUCCESS;
}

API cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
    ENTER();
    bool valid = pool && props && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                 props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && props->location.id >= 0 &&
                 props->location.id < num_devices();
    if (!valid) return CUDA_ERROR_INVALID_VALUE;
    if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    Guard guard(global);
    *pool = new_pool(props->location.id, props->maxSize)->handle;
    return CUDA_SUCCESS;
}

/// Allocations from the pool stay valid until they are freed.
API cuMemPoolDestroy(CUmemoryPool handle) {
    CUresult code = enter(__func__);
    if (!usable()) return code;
    Guard guard(global);
    auto pool = find_pool(handle);
    if (!pool || is_default(pool.get())) {
        misuse("destroy of a default, unknown or destroyed pool %p", (void*)handle);
        return CUDA_ERROR_INVALID_VALUE;
    }
    pool->destroyed = true;
    pool->trim(0);
    if (!pool->blocks.empty()) dying.push_back(pool);
    pools.erase(handle);
    return code;
}

API cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    ENTER();
    Guard guard(global);
    auto pool = find_pool(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    pool->trim(keep);
    return CUDA_SUCCESS;
}

/// The number behind an attribute; the first three are int, the others 64 bits wide.
static uint64_t* wide(Pool& pool, CUmemPool_attribute attribute) {
    switch (attribute) {
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool.threshold;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool.reserved;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool.reserved_high;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool.used;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool.used_high;
        default: return nullptr;
    }
}

static bool is_reuse(CUmemPool_attribute attribute) {
    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
           attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

API cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    ENTER();
    Guard guard(global);
    auto pool = find_pool(handle);
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    if (is_reuse(attribute))
        *(int*)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    else if (uint64_t* number = wide(*pool, attribute))
        *(uint64_t*)value = *number;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    ENTER();
    Guard guard(global);
    auto pool = find_pool(handle);
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    uint64_t* number = wide(*pool, attribute);
    if (is_reuse(attribute)) {
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int*)value;
    } else if (number == &pool->threshold) {
        *number = *(uint64_t*)value;
    } else if (number == &pool->reserved_high || number == &pool->used_high) {
        if (*(uint64_t*)value) return CUDA_ERROR_INVALID_VALUE;  // may only be reset
        *number = number == &pool->used_high ? pool->used : pool->reserved;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
