// Vectors as wide as the processor's registers, and how the words of a panel are multiplied.
//
// A word holds 32 bits of one output's weights: one float32, two bfloat16 or four int8 of consecutive inputs. Activations take the
// format of the weights, so that processors multiply them as they are.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

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

// Intel's processors with AMX take four times as long for a product of bfloat16 as for one of float32: widening is faster.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#define MULTIPLIES_BFLOAT16
constexpr bool kMultipliesBfloat16 = true;
#else
constexpr bool kMultipliesBfloat16 = false;
#endif
// One operand of the instruction is unsigned: activations are raised by 128, and the outputs' offsets take that back.
#if defined(__AVX512VNNI__)
constexpr bool kUnsignedActivations = true;
#else
constexpr bool kUnsignedActivations = false;
#endif

// Multiplications that are worth waking other threads for.
constexpr int64_t kWorthSharing = 1 << 20;

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

// cap tanh(x / cap).
inline Vec capped(Vec x, float cap) { return cap - 2.0f * cap / (1.0f + exponential(x * (2.0f / cap))); }

inline float total(Vec value) {
    float sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += value[lane];
    return sum;
}

typedef uint32_t Word;

inline Ints load_words(const void* from) { return (Ints)load(static_cast<const float*>(from)); }

constexpr int inputs_of_word(Format format) { return 4 / kBytes[format]; }
inline int64_t words(Format format, int64_t inputs) { return (inputs + inputs_of_word(format) - 1) / inputs_of_word(format); }

// Where the weight of an output and an input lies, counted in numbers of the format.
template <Format format>
inline int64_t weight_index(int64_t inputs, int64_t output, int64_t input) {
    constexpr int each = inputs_of_word(format);
    return ((output / kPanel * words(format, inputs) + input / each) * kPanel + output % kPanel) * each + input % each;
}

template <typename To, typename From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline float widened(float number) { return number; }

inline float widened(uint16_t bfloat16) {
    return same_bits<float>(uint32_t(bfloat16) << 16);
}

// To the nearest bfloat16, and to the even one between two.
inline uint32_t rounded_to_bfloat16(float number) {
    const uint32_t bits = same_bits<uint32_t>(number);
    return (number == number ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000) >> 16;
}

// Sums of a vector of outputs, and what is added to them: a vector of words times the activations of the same inputs, in as many
// parts (kParts) as a word takes multiplications. Beside the sums, registers hold kHeld for each vector, and kSpare.
template <Format format>
struct Arithmetic;

template <>
struct Arithmetic<kFloat32> {
    using Sum = Vec;
    static constexpr int kParts = 1, kHeld = 1, kSpare = 0;

    template <int part>
    static Ints of(Ints weights) { return weights; }

    static void add(Sum& sum, Ints weights, Word factor) { sum += (Vec)weights * same_bits<float>(factor); }
};

template <>
struct Arithmetic<kBfloat16> {
    using Sum = Vec;
    static constexpr int kParts = kMultipliesBfloat16 ? 1 : 2, kHeld = 1, kSpare = 2;

    template <int part>
    static Ints of(Ints weights) {
        if (kMultipliesBfloat16) return weights;
        if (part == 0) return weights << 16;
#if defined(__AVX512BW__)
        return (Ints)_mm512_maskz_mov_epi16(0xaaaaaaaa, (__m512i)weights);
#elif defined(__AVX2__)
        return (Ints)_mm256_blend_epi16((__m256i)weights, _mm256_setzero_si256(), 0x55);  // a mask would take a register
#else
        return weights & int32_t(0xffff0000);
#endif
    }

    static void add(Sum& sum, Ints weights, Word factor) {
#if defined(MULTIPLIES_BFLOAT16)
        sum = (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32(int(factor)));
#else
        sum += (Vec)weights * same_bits<float>(factor);
#endif
    }

    static void prepare(const float* x, int64_t inputs, Word* factors) {
        if constexpr (kMultipliesBfloat16) {
            uint16_t* halves = reinterpret_cast<uint16_t*>(factors);
            for (int64_t i = 0; i < inputs; i++) halves[i] = uint16_t(rounded_to_bfloat16(x[i]));
            if (inputs % 2) halves[inputs] = 0;
        } else {
            for (int64_t i = 0; i < inputs; i++) factors[i] = rounded_to_bfloat16(x[i]) << 16;
            if (inputs % 2) factors[inputs] = 0;
        }
    }
};

template <>
struct Arithmetic<kInt8> {
    using Sum = Ints;
    static constexpr int kParts = 1, kHeld = kUnsignedActivations ? 1 : 2, kSpare = kUnsignedActivations ? 1 : 3;

    template <int part>
    static Ints of(Ints weights) { return weights; }

    static void add(Sum& sum, Ints weights, Word factor) {
#if defined(__AVX512VNNI__)
        sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(int(factor)), (__m512i)weights);
#elif defined(__AVX512BW__)
        // |w| (±x), whose sums of two fit 16 bits, since neither is ever -128.
        const __m512i w = (__m512i)weights, x = _mm512_set1_epi32(int(factor));
        const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
        sum += (Ints)_mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x), _mm512_set1_epi16(1));
#elif defined(__AVX2__)
        const __m256i w = (__m256i)weights, signed_x = _mm256_sign_epi8(_mm256_set1_epi32(int(factor)), w);
        sum += (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x), _mm256_set1_epi16(1));
#else
        for (int byte = 0; byte < 4; byte++) sum += (weights << (24 - 8 * byte) >> 24) * int32_t(int8_t(factor >> 8 * byte));
#endif
    }

    // Integers up to 127 and their scale, which is NaN where an activation is not finite.
    static float prepare(const float* x, int64_t inputs, Word* factors) {
        Vec tops{}, zeros{};
        const int64_t whole = inputs / kLanes * kLanes;
        for (int64_t i = 0; i < whole; i += kLanes) {
            const Vec value = load(x + i), size = value < 0.0f ? -value : value;
            tops = size > tops ? size : tops;
            zeros += value * 0.0f;
        }
        float most = 1e-30f, broken = total(zeros);
        for (int lane = 0; lane < kLanes; lane++) most = std::max(most, tops[lane]);
        for (int64_t i = whole; i < inputs; i++) {
            most = std::max(most, std::fabs(x[i]));
            broken += x[i] * 0.0f;
        }
        const float scale = most / 127, magic = kRoundsToInteger;
        uint8_t* bytes = reinterpret_cast<uint8_t*>(factors);
        const int32_t raised = kUnsignedActivations ? 128 : 0;
        for (int64_t i = 0; i < inputs; i++)
            bytes[i] = uint8_t(same_bits<int32_t>(x[i] / scale + magic) - same_bits<int32_t>(magic) + raised);
        for (int64_t i = inputs; i % 4; i++) bytes[i] = 0;  // times weights of zero
        return scale + broken;
    }
};

// The activations of some tokens as products read them, and in int8 the scale of each token.
struct Factors {
    const Word* words;
    int64_t stride;  // from token to token
    const float* scales;
};

template <Format format>
Factors prepared(const float* x, int64_t x_stride, int64_t inputs, int64_t tokens) {
    if constexpr (format == kFloat32) {
        return {reinterpret_cast<const Word*>(x), x_stride, nullptr};
    } else {
        thread_local std::vector<Word> numbers;
        thread_local std::vector<float> scales;
        const int64_t stride = words(format, inputs) * Arithmetic<format>::kParts;
        numbers.resize(std::max<size_t>(numbers.size(), tokens * stride));
        scales.resize(std::max<size_t>(scales.size(), tokens));
        for (int64_t token = 0; token < tokens; token++) {
            const float* from = x + token * x_stride;
            Word* to = numbers.data() + token * stride;
            if constexpr (format == kInt8)
                scales[token] = Arithmetic<format>::prepare(from, inputs, to);
            else
                Arithmetic<format>::prepare(from, inputs, to);
        }
        return {numbers.data(), stride, scales.data()};
    }
}

}  // namespace
