// A stack: its layers for consecutive new tokens of some rows, the sources that it reads, and its predictions.

#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "products.h"

// Tokens that go through the layers together: enough to reuse what was read, few enough to stay in cache.
constexpr int kTogether = 256;

namespace {

// Activations of the tokens that go through together; rows are padded to whole panels.
struct Scratch {
    std::vector<float> hidden, normed, projected, attended, fed, scores;
    int64_t narrow = 0, wide = 0, inner = 0, feed = 0;

    void fit(const Stack& stack, int64_t tokens) {
        const Layer& layer = stack.layer[0];
        narrow = padded(stack.width);
        wide = std::max(padded(layer.query_key_value.outputs), padded(layer.cross_key_value.outputs));
        inner = padded(stack.heads * stack.head_width);
        feed = padded(layer.feed_in.outputs);
        hidden.resize(std::max<size_t>(hidden.size(), tokens * narrow));
        normed.resize(std::max<size_t>(normed.size(), tokens * narrow));
        projected.resize(std::max<size_t>(projected.size(), tokens * wide));
        attended.resize(std::max<size_t>(attended.size(), tokens * inner));
        fed.resize(std::max<size_t>(fed.size(), tokens * feed));
    }
};

void normalise(const Norm& norm, float epsilon, const float* x, float* y, int64_t width, float scale = 1.0f) {
    const int64_t whole = width / kLanes * kLanes;
    float mean = 0;
    if (norm.bias) {
        Vec sums{};
        for (int64_t i = 0; i < whole; i += kLanes) sums += load(x + i);
        mean = total(sums);
        for (int64_t i = whole; i < width; i++) mean += x[i];
        mean /= width;
    }
    Vec sums{};
    for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec centred = load(x + i) - mean;
        sums += centred * centred;
    }
    float squares = total(sums);
    for (int64_t i = whole; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    // Where there is no bias the mean stayed 0: root mean square norm.
    const float factor = 1.0f / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = ((x[i] - mean) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f)) * scale;
}

inline Vec activated(Vec x, int activation) {
    switch (activation) {
        case kRelu: return x > 0.0f ? x : Vec{};
        case kSilu: return x / (1.0f + exponential(-x));
        case kGeluNew: return x / (1.0f + exponential(-1.5957691216f * (x + 0.044715f * x * x * x)));
        default: {
            Vec result;
            for (int lane = 0; lane < kLanes; lane++) result[lane] = 0.5f * x[lane] * (1.0f + std::erf(x[lane] * 0.7071067812f));
            return result;
        }
    }
}

void activate(const Stack& stack, float* x, int64_t count) {
    if (!stack.gated) {
        for (int64_t i = 0; i < count; i += kLanes) store(x + i, activated(load(x + i), stack.activation));
        return;
    }
    // Gate, then value: the result overwrites the gate.
    const int64_t half = count / 2;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) store(x + i, activated(load(x + i), stack.activation) * load(x + half + i));
    if (i < half) {
        Vec gate{}, value{};
        std::memcpy(&gate, x + i, (half - i) * 4);
        std::memcpy(&value, x + half + i, (half - i) * 4);
        const Vec result = activated(gate, stack.activation) * value;
        std::memcpy(x + i, &result, (half - i) * 4);
    }
}

struct TokenPosition {
    int64_t slot, position, source;
};

// Where a head's keys and values lie.
struct HeadCache {
    const float *keys, *values;  // of the first slot
    int64_t slot_stride, capacity;
    const float* bias;  // by key minus query position, of the head's first query head; null: none
};

// All tokens' queries, one head of keys and values after the other, so that these stay in cache. `cache_of(head)` gives them,
// `length_of(token)` how far a token reads, and `window` how many of the last positions up to there; 0: all.
template <typename CacheOf, typename LengthOf>
void attend_by_head(const Stack& stack, const std::vector<TokenPosition>& positions, Scratch& scratch, int64_t heads, int threads,
                    int64_t window, CacheOf cache_of, LengthOf length_of) {
    const int64_t width = stack.head_width, group = stack.heads / heads, tokens = positions.size();
    const bool share = threads > 1 && 2 * tokens * length_of(positions.back()) * stack.heads * width > kWorthSharing;
    const int64_t scores = kQueries * (cache_of(0).capacity + kLanes);
    scratch.scores.resize(std::max<size_t>(scratch.scores.size(), (share ? heads : 1) * scores));
    const auto attend_head = [&](int64_t head, float* own_scores) {
        const HeadCache cache = cache_of(head);
        Query together[kQueries];
        int count = 0;
        for (int64_t token = 0; token < tokens; token++) {
            const auto [slot, position, source] = positions[token];
            const int64_t length = length_of(positions[token]), first = window ? std::max<int64_t>(0, length - window) : 0;
            // Queries of one text and one head go through together; the next text has other keys.
            const bool last = token + 1 == tokens || positions[token + 1].slot != slot;
            for (int64_t one = 0; one < group; one++) {
                const int64_t place = (head * group + one) * width;
                together[count++] = {scratch.projected.data() + token * scratch.wide + place,
                                     cache.bias ? cache.bias + one * (2 * cache.capacity + 1) - position : nullptr,
                                     first, length, scratch.attended.data() + token * scratch.inner + place};
                if (count < kQueries && !(last && one + 1 == group)) continue;
                attend_together(together, count, cache.keys + slot * cache.slot_stride, cache.values + slot * cache.slot_stride,
                                cache.capacity, width, stack.score_scale, stack.score_cap, own_scores);
                count = 0;
            }
        }
    };
    if (share) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t head = 0; head < heads; head++) attend_head(head, scratch.scores.data() + head * scores);
    } else {
        for (int64_t head = 0; head < heads; head++) attend_head(head, scratch.scores.data());
    }
}

// Adds what a block gives to the hidden state, behind its own norm if it has one.
template <Format format>
void add_block(const Stack& stack, const Linear& linear, const Norm& norm, const float* x, int64_t x_stride, Scratch& scratch, int64_t tokens,
               int threads) {
    if (!norm.weight) {
        product<format>(linear, x, x_stride, scratch.hidden.data(), scratch.narrow, tokens, true, threads);
        return;
    }
    // The block has read the normed states, whose place is free.
    product<format>(linear, x, x_stride, scratch.normed.data(), scratch.narrow, tokens, false, threads);
    for (int64_t token = 0; token < tokens; token++) {
        float *from = scratch.normed.data() + token * scratch.narrow, *to = scratch.hidden.data() + token * scratch.narrow;
        normalise(norm, stack.epsilon, from, from, stack.width);
        for (int64_t i = 0; i < stack.width; i++) to[i] += from[i];
    }
}

template <Format format>
void self_attention(const Stack& stack, const Cache& cache, int index, const std::vector<TokenPosition>& positions, Scratch& scratch,
                    int64_t length, int threads) {
    const Layer& layer = stack.layer[index];
    const int64_t width = stack.head_width, group = stack.heads / stack.key_value_heads, tokens = positions.size();
    const int64_t slot_stride = stack.key_value_heads * width * cache.capacity;
    product<format>(layer.query_key_value, scratch.normed.data(), scratch.narrow, scratch.projected.data(), scratch.wide, tokens,
                    false, threads);
    const bool own_angles = layer.window && cache.window_cosines;
    const float* all_cosines = own_angles ? cache.window_cosines : cache.cosines;
    const float* all_sines = own_angles ? cache.window_sines : cache.sines;
    float* all_keys = cache.keys + index * cache.layer_stride;
    float* all_values = cache.values + index * cache.layer_stride;
    for (int64_t token = 0; token < tokens; token++) {
        float* query = scratch.projected.data() + token * scratch.wide;
        float* key = query + stack.heads * width;
        // Norm the heads of query and key, rotate them by the position, and cache key and value there.
        const TokenPosition token_position = positions[token];
        if (layer.query_norm.weight) {
            for (int64_t head = 0; head < stack.heads + stack.key_value_heads; head++) {
                float* here = query + head * width;
                normalise(head < stack.heads ? layer.query_norm : layer.key_norm, stack.epsilon, here, here, width);
            }
        }
        if (all_cosines) {
            const float *cosines = all_cosines + token_position.position * width, *sines = all_sines + token_position.position * width;
            for (int64_t head = 0; head < stack.heads + stack.key_value_heads; head++) turn(query + head * width, cosines, sines, width);
        }
        remember(all_keys + token_position.slot * slot_stride, all_values + token_position.slot * slot_stride, key,
                 key + stack.key_value_heads * width, stack.key_value_heads, width, cache.capacity, token_position.position);
    }
    const auto cache_of = [&](int64_t head) {
        const float* bias = cache.bias ? cache.bias + head * group * (2 * cache.capacity + 1) + cache.capacity : nullptr;
        const int64_t at = head * width * cache.capacity;
        return HeadCache{all_keys + at, all_values + at, slot_stride, cache.capacity, bias};
    };
    // A decoder's token reads itself and what is before it; an encoder's reads the whole row.
    const auto length_of = [&](const TokenPosition& token) { return stack.causal ? token.position + 1 : length; };
    attend_by_head(stack, positions, scratch, stack.key_value_heads, threads, layer.window, cache_of, length_of);
    add_block<format>(stack, layer.out, layer.post_norm, scratch.attended.data(), scratch.inner, scratch, tokens, threads);
}

template <Format format>
void cross_attention(const Stack& stack, const Cache& cache, int index, const std::vector<TokenPosition>& positions, Scratch& scratch, int threads) {
    const Layer& layer = stack.layer[index];
    const int64_t width = stack.head_width, tokens = positions.size();
    const int64_t slot_stride = stack.heads * width * cache.source_capacity;
    product<format>(layer.cross_query, scratch.normed.data(), scratch.narrow, scratch.projected.data(), scratch.wide, tokens, false,
                    threads);
    const auto cache_of = [&](int64_t head) {
        const int64_t at = index * cache.slots * slot_stride + head * width * cache.source_capacity;
        return HeadCache{cache.cross_keys + at, cache.cross_values + at, slot_stride, cache.source_capacity, nullptr};
    };
    const auto length_of = [](const TokenPosition& token) { return token.source; };
    attend_by_head(stack, positions, scratch, stack.heads, threads, 0, cache_of, length_of);
    product<format>(layer.cross_out, scratch.attended.data(), scratch.inner, scratch.hidden.data(), scratch.narrow, tokens, true,
                    threads);
}

void normalise_all(const Stack& stack, const Norm& norm, const float* from, float* to, int64_t stride, int64_t tokens) {
    for (int64_t token = 0; token < tokens; token++) normalise(norm, stack.epsilon, from + token * stride, to + token * stride, stack.width);
}

// What a block reads goes to `normed`: its norm comes before it, or behind it, once it is added to the hidden state.
void enter_block(const Stack& stack, const Norm& norm, Scratch& scratch, int64_t tokens) {
    if (stack.norm_last)
        std::copy_n(scratch.hidden.data(), tokens * scratch.narrow, scratch.normed.data());
    else
        normalise_all(stack, norm, scratch.hidden.data(), scratch.normed.data(), scratch.narrow, tokens);
}

void leave_block(const Stack& stack, const Norm& norm, Scratch& scratch, int64_t tokens) {
    if (stack.norm_last) normalise_all(stack, norm, scratch.hidden.data(), scratch.hidden.data(), scratch.narrow, tokens);
}

template <Format format>
void embed(const Stack& stack, const int32_t* tokens, const std::vector<TokenPosition>& positions, Scratch& scratch) {
    for (size_t token = 0; token < positions.size(); token++) {
        float* to = scratch.hidden.data() + token * scratch.narrow;
        if (stack.embedding)
            std::copy_n(stack.embedding + int64_t(tokens[token]) * stack.width, stack.width, to);
        else if constexpr (format != kInt8)
            unpack_row<format>(stack.tied, tokens[token], to);
        std::fill(to + stack.width, to + scratch.narrow, 0.0f);
        if (stack.embedding_scale != 1.0f)
            for (int64_t i = 0; i < stack.width; i++) to[i] *= stack.embedding_scale;
        if (stack.learned_positions) {
            const float* position = stack.learned_positions + positions[token].position * stack.width;
            for (int64_t i = 0; i < stack.width; i++) to[i] += position[i];
        }
        if (stack.embedding_norm.weight) normalise(stack.embedding_norm, stack.epsilon, to, to, stack.width);
    }
}

// All layers for consecutive new tokens; the last hidden state, normed, goes to `result` (tokens, width).
template <Format format>
void run_layers(const Stack& stack, const Cache& cache, const int32_t* tokens, const std::vector<TokenPosition>& positions, int64_t length,
                float* result, int threads) {
    thread_local Scratch scratch;
    const int64_t count = positions.size();
    scratch.fit(stack, count);
    embed<format>(stack, tokens, positions, scratch);
    for (int index = 0; index < stack.layers; index++) {
        const Layer& layer = stack.layer[index];
        enter_block(stack, layer.norm, scratch, count);
        self_attention<format>(stack, cache, index, positions, scratch, length, threads);
        leave_block(stack, layer.norm, scratch, count);
        if (layer.cross_query.weight) {
            enter_block(stack, layer.cross_norm, scratch, count);
            cross_attention<format>(stack, cache, index, positions, scratch, threads);
            leave_block(stack, layer.cross_norm, scratch, count);
        }
        enter_block(stack, layer.feed_norm, scratch, count);
        product<format>(layer.feed_in, scratch.normed.data(), scratch.narrow, scratch.fed.data(), scratch.feed, count, false, threads);
        for (int64_t token = 0; token < count; token++)
            activate(stack, scratch.fed.data() + token * scratch.feed, layer.feed_in.outputs);
        // Each block adds to the hidden state: the residual connection is the product's `add`.
        add_block<format>(stack, layer.feed_out, layer.feed_post_norm, scratch.fed.data(), scratch.feed, scratch, count, threads);
        leave_block(stack, layer.feed_norm, scratch, count);
    }
    for (int64_t token = 0; token < count; token++) {
        const float* last = scratch.hidden.data() + token * scratch.narrow;
        if (stack.norm.weight)
            normalise(stack.norm, stack.epsilon, last, result + token * stack.width, stack.width);
        else
            std::copy_n(last, stack.width, result + token * stack.width);
    }
}

// RowBatch [from, to), as many at a time as go through together; a bidirectional row goes whole.
template <Format format>
void run_rows(const Stack& stack, const Cache& cache, const RowBatch& rows, int64_t from, int64_t to, float* result, int threads) {
    std::vector<TokenPosition> positions;
    int64_t first = rows.begin[from];
    for (int64_t row = from; row < to; row++) {
        const int64_t count = rows.begin[row + 1] - rows.begin[row], slot = rows.slots[row];
        const int64_t source = cache.source_lengths ? cache.source_lengths[slot] : 0;
        for (int64_t token = 0; token < count; token++) positions.push_back({slot, rows.cached[row] + token, source});
        const bool full = !stack.causal || int64_t(positions.size()) >= kTogether || row + 1 == to;
        if (full && !positions.empty()) {
            run_layers<format>(stack, cache, rows.tokens + first, positions, count, result + first * stack.width, threads);
            first += positions.size();
            positions.clear();
        }
    }
}

template <Format format>
void run_all(const Stack& stack, const Cache& cache, const RowBatch& rows, float* result) {
    const Layer& layer = stack.layer[0];
    const int64_t matrices = layer.query_key_value.inputs * layer.query_key_value.outputs + 2 * layer.feed_in.inputs * layer.feed_in.outputs;
    // Several rows: each thread takes whole rows, and no thread waits inside a layer.
    const int64_t groups = std::min<int64_t>(stack.threads, rows.rows);
    if (groups <= 1 || rows.begin[rows.rows] * stack.layers * matrices <= kWorthSharing) {
        run_rows<format>(stack, cache, rows, 0, rows.rows, result, stack.threads);
        return;
    }
#pragma omp parallel for num_threads(groups) schedule(static)
    for (int64_t group = 0; group < groups; group++)
        run_rows<format>(stack, cache, rows, rows.rows * group / groups, rows.rows * (group + 1) / groups, result, 1);
}

template <typename Run>
auto with_format(int format, Run run) {
    switch (format) {
        case kBfloat16: return run(std::integral_constant<Format, kBfloat16>{});
        case kInt8: return run(std::integral_constant<Format, kInt8>{});
        default: return run(std::integral_constant<Format, kFloat32>{});
    }
}

// Runs the layers over new tokens; `hidden` (new tokens, width).
void run_stack(const Stack& stack, const Cache& cache, const RowBatch& rows, float* hidden) {
    with_format(stack.format, [&](auto format) { run_all<format()>(stack, cache, rows, hidden); });
}

// Keys and values of one source (length, width) in every layer of the decoder.
template <Format format>
void read_source(const Stack& stack, const Cache& cache, const float* hidden, int64_t length, int64_t slot, int threads) {
    thread_local std::vector<float> projected;
    const int64_t width = stack.head_width, slot_stride = stack.heads * width * cache.source_capacity;
    const int64_t stride = padded(stack.layer[0].cross_key_value.outputs);
    projected.resize(std::max<size_t>(projected.size(), length * stride));
    for (int index = 0; index < stack.layers; index++) {
        product<format>(stack.layer[index].cross_key_value, hidden, stack.width, projected.data(), stride, length, false, threads);
        const int64_t at = (index * cache.slots + slot) * slot_stride;
        for (int64_t position = 0; position < length; position++) {
            const float* key = projected.data() + position * stride;
            remember(cache.cross_keys + at, cache.cross_values + at, key, key + stack.heads * width, stack.heads, width,
                     cache.source_capacity, position);
        }
    }
}

template <Format format>
void read_sources(const Stack& stack, const Cache& cache, const float* hidden, int64_t sources, int64_t longest) {
    const Linear& linear = stack.layer[0].cross_key_value;
    const bool share = sources > 1 && stack.threads > 1 && sources * longest * linear.inputs * linear.outputs > kWorthSharing;
#pragma omp parallel for num_threads(stack.threads) schedule(static) if (share)
    for (int64_t slot = 0; slot < sources; slot++)
        read_source<format>(stack, cache, hidden + slot * longest * stack.width, cache.source_lengths[slot], slot,
                            share ? 1 : stack.threads);
}

template <Format format>
void predict(const Stack& stack, const float* hidden, int64_t tokens, float* logits, int64_t stride) {
    thread_local std::vector<float> scaled;
    if (stack.head_scale != 1.0f) {
        scaled.assign(hidden, hidden + tokens * stack.width);
        for (float& one : scaled) one *= stack.head_scale;
        hidden = scaled.data();
    }
    product<format>(stack.head, hidden, stack.width, logits, stride, tokens, false, stack.threads);
    if (stack.logit_cap == 0) return;
    for (int64_t token = 0; token < tokens; token++) {
        float* here = logits + token * stride;
        for (int64_t i = 0; i < padded(stack.head.outputs); i += kLanes) store(here + i, capped(load(here + i), stack.logit_cap));
    }
}

// The token of an output of the head, and the output of a token that has one. Outputs ascend with tokens, so that the first of equal
// logits is that of the lowest token in either order.
inline int32_t token_of(const Stack& stack, int32_t output) {
    return stack.head_tokens && output >= 0 ? stack.head_tokens[output] : output;
}

inline int64_t output_of(const Stack& stack, int32_t token) {
    if (!stack.head_tokens) return token;
    return std::lower_bound(stack.head_tokens, stack.head_tokens + stack.head.outputs, token) - stack.head_tokens;
}

// The first of the greatest logits; -1 where there is NaN, +infinity or no finite logit.
int32_t argmax(const float* logits, int64_t vocabulary) {
    Vec tops = Vec{} - INFINITY;
    Ints odd{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec some = load(logits + i);
        odd |= some != some;
        tops = some > tops ? some : tops;
    }
    float top = -INFINITY;
    bool broken = false;
    for (int lane = 0; lane < kLanes; lane++) {
        top = std::max(top, tops[lane]);
        broken |= odd[lane] != 0;
    }
    for (int64_t i = whole; i < vocabulary; i++) {
        top = std::max(top, logits[i]);
        broken |= std::isnan(logits[i]);
    }
    if (broken || !std::isfinite(top)) return -1;
    return std::find(logits, logits + vocabulary, top) - logits;
}

// Logits (tokens, stride) of last hidden states (tokens, width), and the first of the greatest of `vocabulary` outputs at each; -1:
// broken.
void predict_outputs(const Stack& stack, const float* hidden, int64_t tokens, float* logits, int64_t stride, int64_t vocabulary,
                     int32_t* best) {
    with_format(stack.format, [&](auto format) { predict<format()>(stack, hidden, tokens, logits, stride); });
    for (int64_t token = 0; token < tokens; token++) best[token] = argmax(logits + token * stride, vocabulary);
}

}  // namespace
