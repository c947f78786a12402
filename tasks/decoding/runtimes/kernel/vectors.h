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
#include <immintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#if defined(__AVX512BW__)  // with integers of 8 and 16 bits, which the first processors with AVX-512 lack
constexpr int kLanes = 16, kRegisters = 32;
#else
constexpr int kLanes = 8, kRegisters = 16;
#endif
// A panel holds kPanel outputs in kVectors vectors; up to kBlock tokens multiply it at once.
constexpr int kPanel = 64, kVectors = kPanel / kLanes, kBlock = 6;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

// The same vector in memory, at any address. GCC 12 compiles a memcpy of a vector into halves that go through the stack.
typedef float StoredVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

namespace {

inline int64_t padded(int64_t count) { return (count + kPanel - 1) / kPanel * kPanel; }

inline Vec load(const float* from) { return *reinterpret_cast<const StoredVec*>(from); }

inline void store(float* to, Vec value) { *reinterpret_cast<StoredVec*>(to) = value; }

// 1.5 2^23: adding it rounds a number to an integer.
constexpr float kRoundsToInteger = 12582912.0f;

// e^x to about 2 units in the last place; 0 below the smallest normal number.
inline Vec exponential(Vec x) {
    const Vec magic = Vec{} + kRoundsToInteger;
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
