// Queries against the keys and values of their text.

#pragma once

#include <algorithm>

#include "arithmetic.h"

namespace {

// A sum runs in four chains, each over every fourth term: one chain would wait for itself. What is computed beside a sum never
// changes its order.
constexpr int kChains = 4;

// Queries that read the same keys and values together: the registers hold the sums of each, and a factor.
constexpr int kQueries = kRegisters / (kChains + 1);

// One query of a head: the token's own row of the scratch, and the positions that it reads.
struct Query {
    const float* vector;
    const float* bias;      // null: none
    int64_t first, length;  // from the first to the one before `length`
    float* result;
};

template <int count>
using Chains = Vec[count][kChains];

inline Vec joined(const Vec (&chains)[kChains]) { return (chains[0] + chains[1]) + (chains[2] + chains[3]); }

// All chains of a vector of sums: each query's factors times a vector of every term.
template <int count>
inline void sum_terms(Chains<count>& sums, const float* const (&factors)[count], const float* terms, int64_t stride, int64_t number) {
    int64_t term = 0;
    for (; term + kChains <= number; term += kChains)
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; chain++) {
            const Vec some = load(terms + (term + chain) * stride);
#pragma GCC unroll 8
            for (int query = 0; query < count; query++) sums[query][chain] += some * factors[query][term + chain];
        }
    // Unrolled, so that the sums stay in registers.
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains - 1; chain++)
        if (term + chain < number) {
            const Vec some = load(terms + (term + chain) * stride);
#pragma GCC unroll 8
            for (int query = 0; query < count; query++) sums[query][chain] += some * factors[query][term + chain];
        }
}

// One chain of four vectors of sums that lie side by side.
template <int count>
inline void sum_chain(Chains<count>& sums, const float* const (&factors)[count], const float* terms, int64_t stride, int64_t number, int chain) {
    for (int64_t term = chain; term < number; term += kChains)
#pragma GCC unroll 4
        for (int v = 0; v < kChains; v++) {
            const Vec some = load(terms + term * stride + v * kLanes);
#pragma GCC unroll 8
            for (int query = 0; query < count; query++) sums[query][v] += some * factors[query][term];
        }
}

// `outputs` sums of each query, whole vectors of them: `put(query, output, sum)` takes a vector. Term t of the outputs from o on is
// at terms + t * stride + o.
template <int count, typename Put>
inline void weigh(const float* const (&factors)[count], const float* terms, int64_t stride, int64_t number, int64_t outputs, Put put) {
    int64_t output = 0;
    // One query alone gains nothing from vectors side by side.
    for (; count > 1 && output + kChains * kLanes <= outputs; output += kChains * kLanes) {
        Chains<count> pairs[2];
        for (int pair = 0; pair < 2; pair++) {
            Chains<count> first{}, second{};
            sum_chain<count>(first, factors, terms + output, stride, number, 2 * pair);
            sum_chain<count>(second, factors, terms + output, stride, number, 2 * pair + 1);
            for (int query = 0; query < count; query++)
                for (int v = 0; v < kChains; v++) pairs[pair][query][v] = first[query][v] + second[query][v];
        }
        for (int query = 0; query < count; query++)
            for (int v = 0; v < kChains; v++) put(query, output + v * kLanes, pairs[0][query][v] + pairs[1][query][v]);
    }
    for (; output + kLanes <= outputs; output += kLanes) {
        Chains<count> sums{};
        sum_terms<count>(sums, factors, terms + output, stride, number);
        for (int query = 0; query < count; query++) put(query, output, joined(sums[query]));
    }
}

// Turns the scores from `first` to `length` into shares of one, zero elsewhere; returns what they must be multiplied by to sum up to one.
inline float raise(float* scores, int64_t first, int64_t length, int64_t whole) {
    for (int64_t j = 0; j < first; j++) scores[j] = -INFINITY;
    for (int64_t j = length; j < whole; j++) scores[j] = -INFINITY;
    Vec tops = Vec{} - INFINITY;
    for (int64_t j = 0; j < whole; j += kLanes) {
        const Vec some = load(scores + j);
        tops = some > tops ? some : tops;
    }
    float top = tops[0];
    for (int lane = 1; lane < kLanes; lane++) top = std::max(top, tops[lane]);
    Vec sums{};
    for (int64_t j = 0; j < whole; j += kLanes) {
        const Vec raised = exponential(load(scores + j) - top);
        store(scores + j, raised);
        sums += raised;
    }
    return 1.0f / total(sums);
}

// `count` queries of one text over its keys (width, capacity) and values (capacity, width). `cap` is that of scores, 0 for none. `scores`
// holds `count` rows of whole vectors. All positions that any of the queries reads must have been written; the first query reads from furthest back.
template <int count>
__attribute__((noinline)) void attend(const Query* queries, const float* keys, const float* values, int64_t capacity, int64_t width,
                                      float scale, float cap, float* scores) {
    const float* vectors[count];
    const float* shares[count];
    float factors[count];
    // Whole vectors that no query reads are left out: each of the others stays in its lane and its chain, and sums are the same to the bit.
    const int64_t skipped = queries[0].first / kLanes * kLanes;
    keys += skipped;
    values += skipped * width;
    int64_t longest = 0;
    for (int query = 0; query < count; query++) longest = std::max(longest, queries[query].length - skipped);
    const int64_t whole = (longest + kLanes - 1) / kLanes * kLanes;
    for (int query = 0; query < count; query++) {
        vectors[query] = queries[query].vector;
        shares[query] = scores + query * whole;
    }
    weigh<count>(vectors, keys, capacity, width, whole,
                 [&](int query, int64_t j, Vec sum) { store(scores + query * whole + j, sum * scale); });
    for (int query = 0; query < count; query++) {
        float* own = scores + query * whole;
        const int64_t length = queries[query].length - skipped;
        if (cap != 0)
            for (int64_t j = 0; j < whole; j += kLanes) store(own + j, capped(load(own + j), cap));
        if (queries[query].bias)
            for (int64_t j = 0; j < length; j++) own[j] += queries[query].bias[skipped + j];
        factors[query] = raise(own, queries[query].first - skipped, length, whole);
    }
    weigh<count>(shares, values, width, longest, width,
                 [&](int query, int64_t d, Vec sum) { store(queries[query].result + d, sum * factors[query]); });
    for (int64_t d = width / kLanes * kLanes; d < width; d++)
        for (int query = 0; query < count; query++) {
            float sum = 0;
            for (int64_t j = 0; j < queries[query].length - skipped; j++) sum += shares[query][j] * values[j * width + d];
            queries[query].result[d] = sum * factors[query];
        }
}

// 1 to kQueries queries of one text.
inline void attend_together(const Query* queries, int count, const float* keys, const float* values, int64_t capacity, int64_t width,
                            float scale, float cap, float* scores) {
    switch (count) {
        case 1: return attend<1>(queries, keys, values, capacity, width, scale, cap, scores);
        case 2: return attend<2>(queries, keys, values, capacity, width, scale, cap, scores);
        case 3: return attend<3>(queries, keys, values, capacity, width, scale, cap, scores);
#if defined(__AVX512BW__)
        case 4: return attend<4>(queries, keys, values, capacity, width, scale, cap, scores);
        case 5: return attend<5>(queries, keys, values, capacity, width, scale, cap, scores);
        case 6: return attend<6>(queries, keys, values, capacity, width, scale, cap, scores);
#endif
    }
}

void turn(float* x, const float* cosines, const float* sines, int64_t width) {
    for (int64_t d = 0; d < width / 2; d++) {
        const float one = x[d], other = x[d + width / 2];
        x[d] = one * cosines[d] - other * sines[d];
        x[d + width / 2] = other * cosines[d + width / 2] + one * sines[d + width / 2];
    }
}

void remember(float* keys, float* values, const float* key, const float* value, int64_t heads, int64_t width, int64_t capacity,
              int64_t position) {
    for (int64_t head = 0; head < heads; head++) {
        for (int64_t d = 0; d < width; d++) keys[(head * width + d) * capacity + position] = key[head * width + d];
        std::memcpy(values + (head * capacity + position) * width, value + head * width, width * 4);
    }
}

}  // namespace
