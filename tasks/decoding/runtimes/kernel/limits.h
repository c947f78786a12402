// What the processor gives at most: reading memory, and multiplying numbers of each format.

#pragma once

#include <initializer_list>

#include "vectors.h"

namespace {

// Registers that one product keeps busy: two multiplications a cycle that take four each, and some to spare.
constexpr int kStreams = 10;

// Multiplies vectors that stay in registers, `rounds` times in each stream; the sum keeps the compiler from dropping the work.
template <typename Sum, typename Multiply>
Sum multiplied(int64_t rounds, Multiply multiply) {
    Sum sums[kStreams] = {};
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
        for (int stream = 0; stream < kStreams; stream++) sums[stream] = multiply(sums[stream]);
    }
    for (int stream = 1; stream < kStreams; stream++) sums[0] += sums[stream];
    return sums[0];
}

}  // namespace

extern "C" {

// Reads `count` floats `passes` times with `threads` threads, each its own part; the sum goes to `result`.
void draftline_read_memory(const float* data, int64_t count, int64_t passes, int32_t threads, float* result) {
    constexpr int64_t kStride = 8 * kLanes;
    float sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
    for (int32_t thread = 0; thread < threads; thread++) {
        Vec sums[8] = {};
        const float* part = data + count / threads * thread;
        for (int64_t pass = 0; pass < passes; pass++)
            for (int64_t i = 0; i + kStride <= count / threads; i += kStride)
#pragma GCC unroll 8
                for (int v = 0; v < 8; v++) sums[v] += load(part + i + v * kLanes);
        for (int v = 0; v < 8; v++) sum += total(sums[v]);
    }
    *result = sum;
}

// Multiplies and adds `rounds` times in each stream, as fast as this processor does it for numbers of `format`: by its own
// instructions for bfloat16 and int8 where it has them, otherwise as float32. Returns the multiplications done.
int64_t draftline_multiply(int32_t format, int64_t rounds, float* result) {
    const int64_t vectors = rounds * kStreams;
#if defined(__AVX512BF16__)
    if (format == kBfloat16) {
        const __m512bh one = (__m512bh)_mm512_set1_epi16(*result);
        const Vec sum = multiplied<Vec>(rounds, [&](Vec value) { return (Vec)_mm512_dpbf16_ps((__m512)value, one, one); });
        *result = total(sum);
        return vectors * kLanes * 2;
    }
#endif
#if defined(__AVX512VNNI__)
    if (format == kInt8) {
        const __m512i one = _mm512_set1_epi8(*result);
        const Ints sum = multiplied<Ints>(rounds, [&](Ints value) { return (Ints)_mm512_dpbusd_epi32((__m512i)value, one, one); });
        *result = sum[0];
        return vectors * kLanes * 4;
    }
#endif
    const Vec factor = Vec{} + *result;
    *result = total(multiplied<Vec>(rounds, [&](Vec value) { return value * factor + factor; }));
    return vectors * kLanes;
}
}
