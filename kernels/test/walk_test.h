// kWalk and kPlanar, and every pair of dtypes.
#pragma once

#include "harness.h"
#include "oracle.h"

/// One loop of a sample, before it is laid out.
struct Loop {
    uint64_t extent, lo, hi;
    int64_t src_stride, dst_stride;  // bytes
};

struct Sample {
    const uint8_t* src;  // of its first real element
    uint32_t cls;
};

struct Case {
    Kind kind = kWalk;
    Op op = kRead;
    uint8_t dtype, size;
    std::vector<Class> classes;
    std::vector<std::vector<Loop>> loops;  // of each class
    std::vector<uint8_t> src_dtypes;
    std::vector<Sample> samples;
    std::vector<int64_t> offsets;  // joined
    uint64_t unit;
    int64_t step;
    uint64_t numel;
    std::vector<double> a, b;
    bool wide = false;
    uint8_t value = 0, fill[16];
    size_t out_bytes, out_skew;
    int64_t out_first = 0;  // byte of the first element
};

inline uint64_t product(const std::vector<Loop>& loops) {
    uint64_t n = 1;
    for (const Loop& loop : loops) n *= loop.extent;
    return n;
}

/// Lays the case out in the batch, and works out what must come of it.
inline void add_case(Batch& batch, Case& c) {
    Output& output = batch.output(c.out_bytes, c.out_skew);
    std::vector<uint64_t> starts, data;
    std::vector<uint32_t> ids;
    std::vector<Dim> dims;
    for (size_t i = 0; i < c.classes.size(); ++i) {
        c.classes[i].num_dims = c.loops[i].size();
        std::vector<Dim> own;
        for (const Loop& l : c.loops[i]) {
            own.push_back({l.extent, l.lo, l.hi, l.src_stride, l.dst_stride, divisor(l.extent)});
        }
        c.classes[i].dims = batch.put(own);
    }
    for (size_t s = 0; s < c.samples.size(); ++s) {
        const Sample& sample = c.samples[s];
        const Class& cls = c.classes[sample.cls];
        const auto& loops = c.loops[sample.cls];
        data.push_back(uint64_t(sample.src));
        ids.push_back(sample.cls);
        starts.push_back(c.offsets.empty() ? s * c.unit : c.offsets[s] * c.unit);
        for (uint64_t e = 0; e < product(loops); ++e) {
            std::vector<uint64_t> at(loops.size());
            uint64_t rest = e;
            int64_t src = 0, dst = c.out_first + c.step * (c.offsets.empty() ? s : c.offsets[s]);
            bool real = true;
            for (size_t d = loops.size(); d-- > 0;) {
                at[d] = rest % loops[d].extent;
                rest /= loops[d].extent;
                real &= at[d] >= loops[d].lo && at[d] < loops[d].hi;
                src += int64_t(at[d] - loops[d].lo) * loops[d].src_stride;
                dst += int64_t(at[d]) * loops[d].dst_stride;
            }
            uint8_t bits[16] = {};
            uint64_t number = s;
            if (!real) {
                memcpy(bits, c.fill, 16);
            } else if (c.op == kConst) {
                bits[0] = c.value;
            } else if (c.op == kIndex) {
                memcpy(bits, &number, 8);
            } else {
                memcpy(bits, sample.src + src, cls.elem_size);
                allow(sample.src + src, cls.elem_size);
                if (cls.dtype != kMoved) {
                    uint64_t channel = 0, x;
                    size_t last = loops.size() - 1;
                    if (cls.channel == kLoopChannel) {
                        channel = at[cls.channel_dim] - loops[cls.channel_dim].lo;
                    } else if (cls.channel == kInnerChannel) {
                        channel = at[last] - loops[last].lo;
                    }
                    if (cls.channel != kNoChannel) channel += cls.channel_first;
                    memcpy(&x, bits, 8);
                    if (!c.a.empty()) channel %= c.a.size();
                    bool mapped = !c.a.empty();
                    x = oracle::convert(cls.dtype, c.dtype, x, mapped ? &c.a[channel] : nullptr,
                                        mapped ? &c.b[channel] : nullptr);
                    memcpy(bits, &x, 8);
                }
            }
            memcpy(output.want(dst), bits, c.size);
        }
    }
    starts.push_back(c.numel);
    Field field{};
    field.out = output.data() + c.out_first;
    field.numel = c.numel;
    field.unit = c.unit;
    field.step = c.step;
    field.num_samples = c.samples.size();
    field.by_unit = divisor(c.unit);
    field.data = c.op == kConst || c.op == kIndex ? ~0u : batch.put(data);
    bool one = std::all_of(ids.begin(), ids.end(), [](uint32_t id) { return id == 0; });
    if (!one || pick(2) == 0) field.class_ids = batch.put(ids);
    field.classes = batch.put(c.classes);
    if (!c.offsets.empty()) field.offsets = batch.put(c.offsets);
    if (!c.a.empty()) {
        std::vector<double> all = c.a;
        all.insert(all.end(), c.b.begin(), c.b.end());
        field.affine = c.wide ? batch.put(all)
                              : batch.put(std::vector<float>(all.begin(), all.end()));
        field.channels = c.a.size();
        c.op = kAffine;
    }
    field.kind = c.kind;
    field.op = c.op;
    field.dtype = c.dtype;
    field.elem_size = c.size;
    field.value = c.value;
    field.wide = c.wide;
    field.aligned = uintptr_t(field.out) % c.size == 0;
    memcpy(field.fill, c.fill, 16);
    batch.add(field, starts);
}

/// Bits that make casts show what they do.
inline uint64_t special(int dtype) {
    if (dtype <= kU64 || pick(4) == 0) {
        uint64_t one = 1ull << pick(64);
        // A bit above a tie of a narrower type.
        if (pick(4) == 0) return one | one >> (pick(2) ? 8 : pick(64)) | pick(3);
        return pick(2) ? rng() >> pick(64) : pick(2) ? one - pick(3) : ~one + pick(3);
    }
    oracle::Format f = oracle::format(dtype);
    uint64_t sign = pick(2) << (f.width() - 1), top = (1ull << f.exponent) - 1;
    uint64_t tie = (1ull << f.fraction) >> (pick(2) ? 8 : 11);
    uint64_t fractions[] = {tie + pick(3) - 1, 1, 1ull << (f.fraction - 1),
                            (1ull << f.fraction) - 1, pick(2) ? 0 : rng()};
    // Zeros and subnormals, near 1, near the limits of the integers and of float16, NaN, infinity.
    uint64_t near = f.bias() + (f.exponent < 8 ? pick(30) - 14 : pick(100) - 30);
    uint64_t exponents[] = {0, near & top, near & top, top, rng() & top};
    uint64_t fraction = fractions[pick(5)] & ((1ull << f.fraction) - 1);
    return sign | exponents[pick(5)] << f.fraction | fraction;
}

inline Class new_class(uint8_t dtype, uint8_t size) {
    Class cls{};
    cls.dtype = dtype;
    cls.elem_size = size;
    return cls;
}

inline void random_affine(Case& c, size_t channels) {
    const double some[] = {1, 0, -1, 0.5, 3.25, 1 / 255.0, -2.118, 1e30, 1e-30};
    for (size_t i = 0; i < channels; ++i) {
        c.a.push_back(pick(20) == 0 ? INFINITY : some[pick(9)]);
        c.b.push_back(some[pick(9)]);
    }
}

inline bool has_f64(const Case& c) {
    bool f64 = c.dtype == kF64;
    for (const Class& cls : c.classes) f64 |= cls.dtype == kF64;
    return f64;
}

/// Single elements: every float16 and bfloat16, and many of the rest, to every dtype.
inline void test_casts() {
    const Affine none = {nullptr, 1, false};
    for (int from = 0; from < kMoved; ++from) {
        bool all = from == kF16 || from == kBF16;
        for (uint64_t i = 0; i < (all ? 65536 : 20000); ++i) {
            uint64_t mask = ~0ull >> (64 - 8 * oracle::kSizes[from]);
            uint64_t bits = (all ? i : special(from)) & mask;
            for (int to = 0; to < kMoved; ++to) {
                uint64_t got[1] = {bits};
                convert(got, from, to, none, 0, 0);
                uint64_t want = oracle::convert(from, to, bits, nullptr, nullptr);
                mask = ~0ull >> (64 - 8 * oracle::kSizes[to]);
                CHECK(((got[0] ^ want) & mask) == 0, "dtype %d to %d: %lx gives %lx, not %lx", from,
                      to, bits, got[0] & mask, want & mask);
            }
        }
    }
}

/// Every pair, with and without a map.
inline void test_pairs() {
    for (int from = 0; from < kMoved; ++from) {
        for (int to = 0; to < kMoved; ++to) {
            for (int mapped = 0; mapped < 2; ++mapped) {
                Case c;
                const uint64_t num = 1200;
                c.dtype = to;
                c.size = oracle::kSizes[to];
                int size = oracle::kSizes[from];
                bool skewed = pick(3) == 0;
                uint8_t* src = allocate(num * size, skewed ? pick(16) : 0, false);
                for (uint64_t i = 0; i < num; ++i) {
                    uint64_t bits = special(from);
                    memcpy(src + i * size, &bits, size);
                }
                c.classes = {new_class(from, size)};
                c.loops = {{{num, 0, num, size, c.size}}};
                c.samples = {{src, 0}};
                c.numel = c.unit = num;
                c.step = num * c.size;
                c.out_bytes = num * c.size;
                c.out_skew = pick(3) == 0 ? pick(16) : 0;
                memset(c.fill, 0xC3, 16);
                if (mapped) {
                    random_affine(c, 1 + 3 * pick(2));
                    c.classes[0].channel = kInnerChannel;
                    c.wide = has_f64(c) || pick(4) == 0;
                }
                Batch batch(1024 << pick(4), 1);
                add_case(batch, c);
                char what[64];
                snprintf(what, sizeof what, "dtype %d to %d%s", from, to, mapped ? " mapped" : "");
                batch.run(what);
            }
        }
    }
}

/// Allocates a source for these loops, whose strides it sets: dense in a random order of the loops
/// with gaps, some of them reversed or broadcast. Returns the first real element.
inline const uint8_t* random_source(std::vector<Loop>& loops, uint8_t dtype, int size, bool keep) {
    std::vector<size_t> order(loops.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    if (!keep && pick(2) == 0) std::shuffle(order.begin(), order.end(), rng);
    int64_t reach = size, first = 0;
    bool gaps = pick(3) == 0;
    for (size_t d : order) {
        uint64_t real = loops[d].hi - loops[d].lo;
        loops[d].src_stride = reach;
        if (!keep && pick(12) == 0) {
            loops[d].src_stride = 0;
            continue;
        }
        if (!keep && pick(6) == 0 && real > 0) {
            first += (real - 1) * reach;
            loops[d].src_stride = -reach;
        }
        reach *= real;
        if (gaps) reach += size * pick(3);
    }
    size_t bytes = std::max<int64_t>(reach, first + size);
    uint8_t* data = allocate(bytes, pick(3) == 0 ? pick(16) : size * pick(16 / size), false);
    if (dtype != kMoved) {
        for (size_t i = 0; i + size <= bytes; i += size) {
            uint64_t bits = special(dtype);
            memcpy(data + i, &bits, size);
        }
    }
    return data + first;
}

inline void pad(Loop& loop) {
    if (pick(3) == 0) {
        loop.lo = pick(loop.extent + 1);
        loop.hi = loop.lo + pick(loop.extent - loop.lo + 1);
    }
}

inline void random_case(Case& c, bool planar) {
    c.kind = planar ? kPlanar : kWalk;
    bool moved = pick(6) == 0;
    bool pixels = planar && pick(3) != 0;  // uint8 to something
    c.dtype = moved ? uint8_t(kMoved) : pick(kMoved);
    if (pixels && !moved) {
        const uint8_t some[] = {kU8, kF16, kBF16, kF32, kF64};
        c.dtype = some[pick(5)];
    }
    const uint8_t moved_sizes[] = {1, 8, 16};
    c.size = moved ? moved_sizes[pick(3)] : oracle::kSizes[c.dtype];
    if (!planar && pick(6) == 0) c.op = pick(2) ? kConst : kIndex;
    if (c.op == kConst) c.dtype = kBool, c.size = 1, c.value = pick(2);
    if (c.op == kIndex) c.dtype = kI64, c.size = 8;
    moved = c.dtype == kMoved;
    for (uint8_t& byte : c.fill) byte = rng();
    // The shape of the output, and of it the strides.
    size_t rank = 1 + planar + pick(3 - planar + 1);
    bool joined = pick(2) == 0;
    std::vector<uint64_t> shape(rank);
    for (uint64_t& extent : shape) extent = 1 + pick(pick(3) == 0 ? 40 : 7);
    if (planar) shape[0] = 2 + pick(3);
    size_t num = 1 + pick(pick(4) == 0 ? 40 : 6);
    if (joined && planar) ++rank, shape.insert(shape.begin() + 1, 1);
    size_t joined_dim = planar ? 1 : pick(rank);
    std::vector<uint64_t> extents(num, joined ? 0 : shape[0]);
    uint64_t total = 0;
    if (joined) {
        for (uint64_t& extent : extents) total += extent = pick(5);
        shape[joined_dim] = total;
    }
    std::vector<int64_t> strides(rank);
    std::vector<size_t> order(rank);
    for (size_t i = 0; i < rank; ++i) order[i] = rank - 1 - i;
    if (!planar && pick(6) == 0) std::shuffle(order.begin(), order.end(), rng);
    int64_t reach = c.size;
    bool gaps = pick(5) == 0;
    for (size_t d : order) {
        strides[d] = reach;
        reach *= std::max<uint64_t>(shape[d], 1);
        if (gaps) reach += c.size * pick(3);
    }
    c.out_bytes = reach * (joined ? 1 : num);
    c.out_skew = pick(4) == 0 ? pick(16) : c.size * pick(16 / c.size);
    c.step = joined ? strides[joined_dim] : reach;
    c.unit = 1;
    for (size_t d = 0; d < rank; ++d) c.unit *= joined && d == joined_dim ? 1 : shape[d];
    c.numel = c.unit * (joined ? total : num);
    if (joined) c.offsets = {0};
    size_t kinds = 1 + pick(3);
    std::vector<uint8_t> kind_dtypes;
    for (size_t i = 0; i < kinds; ++i) {
        kind_dtypes.push_back(moved ? uint8_t(kMoved) : pixels ? uint8_t(kU8) : pick(kMoved));
    }
    bool mapped = !moved && c.op == kRead && pick(2) == 0;
    for (size_t s = 0; s < num; ++s) {
        // A class of its own for every sample: the loops differ.
        uint8_t dtype = kind_dtypes[pick(kinds)];
        Class cls = new_class(dtype, moved ? c.size : oracle::kSizes[dtype]);
        std::vector<Loop> loops;
        for (size_t d = 0; d < rank; ++d) {
            uint64_t extent = joined && d == joined_dim ? extents[s] : shape[d];
            Loop loop{extent, 0, extent, 0, strides[d]};
            if (!(planar && d == 0) && !(joined && d == joined_dim)) pad(loop);
            loops.push_back(loop);
        }
        const uint8_t* src;
        if (planar) {
            std::rotate(loops.begin(), loops.begin() + 1, loops.end());
            src = random_source(loops, dtype, cls.elem_size, true);
            std::rotate(loops.begin(), loops.end() - 1, loops.end());
            // No gap behind a pixel's channels.
            CHECK(loops[0].src_stride == cls.elem_size, "planar");
            int64_t wrong = loops[rank - 1].src_stride, right = cls.elem_size * shape[0];
            if (wrong != right) return random_case(c = Case(), planar);
            if (mapped) cls.channel = kLoopChannel;
        } else {
            src = random_source(loops, dtype, cls.elem_size, false);
            if (mapped) {
                cls.channel = pick(3);
                cls.channel_dim = pick(rank > 1 ? rank - 1 : 1);
                cls.channel_first = pick(3);
            }
        }
        c.classes.push_back(cls);
        c.loops.push_back(loops);
        c.samples.push_back({src, uint32_t(s)});
        if (joined) c.offsets.push_back(c.offsets.back() + extents[s]);
    }
    if (mapped) {
        size_t channels = pick(4) == 0 ? 1 : planar ? shape[0] : 2 + pick(60);
        random_affine(c, channels);
        c.wide = has_f64(c) || pick(4) == 0;
        if (c.kind == kWalk && channels < 40) {
            // first + coordinate stays below, as it does for a channel dim.
            for (size_t i = 0; i < c.classes.size(); ++i) {
                if (c.classes[i].channel == kLoopChannel) c.classes[i].channel = kInnerChannel;
            }
        }
    }
}

inline void test_walk(bool planar, int num) {
    for (int i = 0; i < num; ++i) {
        size_t num_fields = 1 + pick(2);
        Batch batch(any_tile() * 2 % 32704, num_fields);
        for (size_t f = 0; f < num_fields; ++f) {
            Case c;
            random_case(c, planar);
            add_case(batch, c);
        }
        batch.run(planar ? "planar" : "walk");
    }
}
