// One query against the keys and values of its text.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace {

// Sums of four chains, each of every fourth term: one chain would wait for itself.
constexpr int kChains = 4;

inline Vec joined(const Vec* chains) { return (chains[0] + chains[1]) + (chains[2] + chains[3]); }

// `kLanes` scores: the query against as many keys.
inline Vec score(const float* query, const float* keys, int64_t capacity, int64_t width) {
    Vec chains[kChains] = {};
    int64_t d = 0;
    for (; d + kChains <= width; d += kChains)
        for (int chain = 0; chain < kChains; chain++) chains[chain] += load(keys + (d + chain) * capacity) * query[d + chain];
    for (; d < width; d++) chains[0] += load(keys + d * capacity) * query[d];
    return joined(chains);
}

// `kLanes` of the result: the values, weighted.
inline Vec weigh(const float* shares, const float* values, int64_t length, int64_t width) {
    Vec chains[kChains] = {};
    int64_t j = 0;
    for (; j + kChains <= length; j += kChains)
        for (int chain = 0; chain < kChains; chain++) chains[chain] += load(values + (j + chain) * width) * shares[j + chain];
    for (; j < length; j++) chains[0] += load(values + j * width) * shares[j];
    return joined(chains);
}

// One head of one query over `length` keys; `scores` is padded to whole vectors.
void attend(const float* query, const float* keys, const float* values, const float* bias, int64_t length, int64_t capacity,
            int64_t width, float scale, float* scores, float* result) {
    const int64_t whole = (length + kLanes - 1) / kLanes * kLanes;
    for (int64_t j = 0; j < whole; j += kLanes) store(scores + j, score(query, keys + j, capacity, width) * scale);
    if (bias)
        for (int64_t j = 0; j < length; j++) scores[j] += bias[j];
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
    const float factor = 1.0f / total(sums);
    int64_t d = 0;
    for (; d + kLanes <= width; d += kLanes) store(result + d, weigh(scores, values + d, length, width) * factor);
    for (; d < width; d++) {
        float sum = 0;
        for (int64_t j = 0; j < length; j++) sum += scores[j] * values[j * width + d];
        result[d] = sum * factor;
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
