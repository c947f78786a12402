// Vectors as wide as the processor's registers.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "layout.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector is passed between libraries
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of the header's own
#endif
#if defined(__AVX2__)
#include <immintrin.h>  // compilers widen bytes badly
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16, kRegisters = 32;
#else
constexpr int kLanes = 8, kRegisters = 16;
#endif
// Vectors of a panel, and tokens that multiply one at once.
constexpr int kVectors = 4, kBlock = 6;
constexpr int kPanel = kLanes * kVectors;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

// The same vectors in memory, at any address. GCC 12 compiles a memcpy of a vector into halves that go through the stack.
typedef float StoredVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint16_t StoredHalves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef int8_t StoredBytes __attribute__((vector_size(kLanes), aligned(1), may_alias));

namespace {

inline int64_t padded(int64_t count) { return (count + kPanel - 1) / kPanel * kPanel; }

inline Vec load(const float* from) { return *reinterpret_cast<const StoredVec*>(from); }

inline void store(float* to, Vec value) { *reinterpret_cast<StoredVec*>(to) = value; }

template <Format format>
inline Vec weights(const void* base, int64_t index) {
    if constexpr (format == kFloat32) {
        return load(static_cast<const float*>(base) + index);
    } else if constexpr (format == kBfloat16) {
        const Halves halves = *reinterpret_cast<const StoredHalves*>(static_cast<const uint16_t*>(base) + index);
#if defined(__AVX512F__)
        const Ints bits = (Ints)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)halves), 16);
#elif defined(__AVX2__)
        const Ints bits = (Ints)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)halves), 16);
#else
        const Ints bits = __builtin_convertvector(halves, Ints) << 16;
#endif
        return (Vec)bits;  // the same bits
    } else {
        const Bytes bytes = *reinterpret_cast<const StoredBytes*>(static_cast<const int8_t*>(base) + index);
#if defined(__AVX512F__)
        return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
        return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_set_epi64x(0, (int64_t)bytes)));
#else
        return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Vec);
#endif
    }
}

// e^x to about 2 units in the last place; 0 below the smallest normal number.
inline Vec exponential(Vec x) {
    const Vec magic = Vec{} + 12582912.0f;  // 1.5 2^23: adding it rounds to an integer
    Vec bounded = x < -87.0f ? Vec{} - 87.0f : x;
    bounded = bounded > 88.0f ? Vec{} + 88.0f : bounded;
    const Vec turns = bounded * 1.44269504f + magic;
    const Vec whole = turns - magic;
    Vec rest = bounded - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vec sum = Vec{} + 1.9875691500e-4f;
    for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = sum * rest + coefficient;
    sum = sum * rest * rest + rest + 1.0f;
    Ints bits = (__builtin_convertvector(whole, Ints) + 127) << 23;
    const Vec scaled = sum * (Vec)bits;
    return x < -87.0f ? Vec{} : scaled;
}

inline float total(Vec value) {
    float sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += value[lane];
    return sum;
}

}  // namespace
