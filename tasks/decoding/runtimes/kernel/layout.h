// What `layout.py` fills in: weights, caches and new tokens.

#pragma once

#include <cstdint>

enum Format { kFloat32, kBfloat16, kInt8 };
constexpr int kBytes[] = {4, 2, 1};  // of a number of each format
enum Activation { kRelu, kGelu, kGeluNew, kSilu };

extern "C" {

struct Linear {
    const void* weight;
    const float* scale;     // of each output, where weights are integers
    const int32_t* offset;  // of each output, there: 128 times the sum of its weights
    const float* bias;
    int64_t inputs, outputs;
};

struct Norm {
    const float *weight, *bias;
};

struct Layer {
    Norm norm;
    Linear query_key_value, out;
    Norm query_norm, key_norm;  // of each head; without weights: none
    Norm cross_norm;
    Linear cross_query, cross_key_value, cross_out;
    Norm feed_norm;
    Linear feed_in, feed_out;
    Norm post_norm, feed_post_norm;  // of what self-attention and feed-forward add; without weights: none
    int64_t window;  // tokens that self-attention reads, the last ones; 0: all
};

struct Stack {
    int32_t layers, width, heads, key_value_heads, head_width, activation, gated, causal, norm_last, format, threads;
    float epsilon, score_scale, head_scale, embedding_scale;
    float score_cap, logit_cap;  // 0: none
    const Layer* layer;
    const float *embedding, *learned_positions;
    Norm embedding_norm, norm;  // without weights: none
    Linear head;
    Linear tied;  // the packed matrix whose outputs are the embedding's rows, where `embedding` is null
    const int32_t* head_tokens;  // the token of each output of a head over a draft vocabulary, ascending; otherwise null
};

// Keys and values of `slots` texts of up to `capacity` tokens, and of the sources that they are read against.
struct Cache {
    float *keys, *values;
    int64_t layer_stride, slots, capacity;
    float *cross_keys, *cross_values;
    int64_t source_capacity;
    const int32_t* source_lengths;  // of each slot
    const float* bias;              // (heads, 2 capacity + 1), by distance
    const float *cosines, *sines;   // (capacity, head width)
    const float *window_cosines, *window_sines;  // of layers with a window; null: those
};

// A greedy acceptance rule in numbers (`tasks/decoding/decoder.py`: GreedyAcceptance): a token is kept where one of them keeps it.
struct Acceptance {
    double max_surprisal, min_share, max_gap;
    int32_t keep_agreed;  // whether the argmax is kept
};

// New tokens, row after row: the row `r` has those from `begin[r]` to `begin[r + 1]`, after `cached[r]` in its slot.
struct RowBatch {
    int64_t rows;
    const int32_t *tokens, *begin, *cached, *slots;
};
}
