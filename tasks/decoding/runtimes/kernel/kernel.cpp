// A transformer stack on a CPU: what `native.py` calls, one call a run of the model.
//
// At the sizes of drafters a framework spends its time between operations, not in them. Here a run is one function call, and
// each number is summed in one order, whatever is computed beside it: a token's logits are the same, to the bit, one at a
// time, in a block that is verified, and in a batch.
//
// Matrices lie in panels of `kPanel` outputs and words of 32 bits, (panels, words, kPanel), zero beyond the last output and
// input, so that a product reads them in one stream. Keys lie (head, width, position), so that all scores of a query are computed side by side.

#include <type_traits>

#include "layers.h"
#include "packing.h"

namespace {

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
int32_t likeliest(const float* logits, int64_t vocabulary) {
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

// The softmax of the greatest logit.
float confidence(const float* logits, int64_t vocabulary, float top) {
    Vec sums{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) sums += exponential(load(logits + i) - top);
    float sum = total(sums);
    for (int64_t i = whole; i < vocabulary; i++) sum += std::exp(logits[i] - top);
    return 1.0f / sum;
}

// The entropy of the softmax, in nats.
float entropy(const float* logits, int64_t vocabulary, float top) {
    // A masked logit is -infinity, whose product with its probability of 0 must be 0.
    const float least = -87.0f;
    Vec sums{}, weighted{};
    const int64_t whole = vocabulary / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
        const Vec below = load(logits + i) - top, raised = exponential(below);
        sums += raised;
        weighted += raised * (below < least ? Vec{} + least : below);
    }
    float sum = total(sums), weighted_sum = total(weighted);
    for (int64_t i = whole; i < vocabulary; i++) {
        const float below = logits[i] - top, raised = below < least ? 0.0f : std::exp(below);
        sum += raised;
        weighted_sum += raised * std::max(below, least);
    }
    return std::log(sum) - weighted_sum / sum;
}

// Whether a rule's bounds on the scores themselves accept a token whose score is `share` of the highest.
bool accepts_score(const Acceptance& rule, const float* logits, int64_t outputs, int32_t token, float top, double share) {
    if (rule.max_surprisal < 0 && rule.max_gap < 0) return false;
    const double highest = confidence(logits, outputs, top), score = share * highest;
    return -std::log(score) <= rule.max_surprisal || highest - score <= rule.max_gap;
}

// How many tokens of a draft stay, told of one token after the other whether the rule keeps it (`decoder.py`: Pardon.count).
struct Keeping {
    const Acceptance& rule;
    int64_t count = 0, waiting = 0;
    bool over = false;

    explicit Keeping(const Acceptance& rule) : rule(rule) {}

    template <typename Entropy>
    void examine(int64_t index, bool kept, Entropy nats) {
        if (kept) {
            waiting = std::max<int64_t>(0, waiting - 1);
            if (!waiting) count = index + 1;
        } else if (waiting || !rule.pardon_window || nats() < rule.pardon_entropy) {
            over = true;
        } else {
            waiting = rule.pardon_window;
        }
    }
};

// How many drafted tokens stay: `best` and `logits` (drafted + 1, stride) are what the large model predicts at their positions.
int64_t count_kept(const Acceptance& rule, const float* logits, int64_t stride, int64_t vocabulary, const int32_t* best, const int32_t* draft,
                   int64_t drafted) {
    Keeping keeping(rule);
    for (int64_t index = 0; index < drafted && !keeping.over; index++) {
        const float* here = logits + index * stride;
        const bool agrees = best[index] == draft[index];
        const float top = best[index] < 0 ? 0 : here[best[index]];
        bool kept = best[index] < 0 || (rule.agreement == 1 && agrees);
        if (!kept) {
            const double share = std::exp(double(here[draft[index]]) - top);
            kept = share >= rule.min_share || accepts_score(rule, here, vocabulary, draft[index], top, share);
        }
        if (!kept && rule.agreement == 2 && agrees) return drafted;
        keeping.examine(index, kept, [&] { return entropy(here, vocabulary, top); });
    }
    return keeping.count;
}

// Where a draft stops before its budget: after a token whose confidence is not above `fallback_threshold`, one with which the
// product of confidences falls under `stop_below`, one where the entropy is above `max_entropy`, or one that ends a text.
struct DraftStops {
    double fallback_threshold, stop_below, max_entropy;
    const int32_t* ends;
    int64_t end_count;

    DraftStops(double fallback_threshold, double stop_below, double max_entropy, const int32_t* ends, int64_t end_count)
        : fallback_threshold(fallback_threshold), stop_below(stop_below), max_entropy(max_entropy), ends(ends), end_count(end_count) {}

    bool reads_scores() const { return fallback_threshold > 0 || stop_below > 0; }
    bool reads_entropy() const { return max_entropy < HUGE_VAL; }

    bool after(int32_t token, double confidence, double nats, double& cumulative) const {
        cumulative *= confidence;
        const bool unsure = confidence <= fallback_threshold || cumulative < stop_below || nats > max_entropy;
        return unsure || std::find(ends, ends + end_count, token) != ends + end_count;
    }
};

template <typename Run>
auto with_format(int format, Run run) {
    switch (format) {
        case kBfloat16: return run(std::integral_constant<Format, kBfloat16>{});
        case kInt8: return run(std::integral_constant<Format, kInt8>{});
        default: return run(std::integral_constant<Format, kFloat32>{});
    }
}

// Logits (tokens, stride) of last hidden states (tokens, width), and the first of the greatest of `vocabulary` outputs at each; -1:
// broken.
void predict_outputs(const Stack& stack, const float* hidden, int64_t tokens, float* logits, int64_t stride, int64_t vocabulary,
                     int32_t* best) {
    with_format(stack.format, [&](auto format) { predict<format()>(stack, hidden, tokens, logits, stride); });
    for (int64_t token = 0; token < tokens; token++) best[token] = likeliest(logits + token * stride, vocabulary);
}

}  // namespace

extern "C" {

int64_t draftline_panel() { return kPanel; }

// Packs `rows` outputs of a matrix, from the output `first` on, into its panels: `source` (rows, inputs) in float32 or bfloat16.
// `packed` must hold zeros beyond the matrix. `scales` and `offsets` (outputs) are written for int8 alone; `offsets` must hold zeros.
void draftline_pack(int32_t format, int32_t source_format, const void* source, int64_t first, int64_t rows, int64_t inputs,
                    void* packed, float* scales, int32_t* offsets, int32_t threads) {
    with_format(format, [&](auto to) {
        const auto pack = source_format == kBfloat16 ? pack_rows<to(), uint16_t> : pack_rows<to(), float>;
        pack(source, first, rows, inputs, packed, scales, offsets, threads);
    });
}

// Runs the layers over new tokens; `hidden` (new tokens, width).
void draftline_run(const Stack* stack, const Cache* cache, const RowBatch* rows, float* hidden) {
    with_format(stack->format, [&](auto format) { run_all<format()>(*stack, *cache, *rows, hidden); });
}

// Keeps what `sources` encoded texts (sources, longest, width) are read by, in slots of the same numbers.
void draftline_read(const Stack* stack, const Cache* cache, const float* hidden, int64_t sources, int64_t longest) {
    with_format(stack->format, [&](auto format) { read_sources<format()>(*stack, *cache, hidden, sources, longest); });
}

// Logits (tokens, stride) of last hidden states (tokens, width), and the token of the greatest of `vocabulary` outputs at each; -1:
// broken.
void draftline_predict(const Stack* stack, const float* hidden, int64_t tokens, float* logits, int64_t stride, int64_t vocabulary,
                       int32_t* best) {
    predict_outputs(*stack, hidden, tokens, logits, stride, vocabulary, best);
    for (int64_t token = 0; token < tokens; token++) best[token] = token_of(*stack, best[token]);
}

// Continues one row greedily: at most `budget` tokens, until `DraftStops` stops it. Gives how many positions were predicted; the last one's
// token is not fed. `logits` (budget, stride); `hidden` (tokens of the row, width), a buffer for one run; `best`,
// `confidences`, `entropies` (budget); the last may be null.
int64_t draftline_continue(const Stack* stack, const Cache* cache, const RowBatch* rows, int64_t budget, double fallback_threshold, double stop_below,
                         double max_entropy, const int32_t* ends, int64_t end_count, float* hidden, float* logits, int64_t stride, int64_t vocabulary, int32_t* best,
                         double* confidences, double* entropies) {
    const DraftStops stops(fallback_threshold, stop_below, max_entropy, ends, end_count);
    double cumulative = 1;
    int32_t begin[2] = {0, rows->begin[1]}, cached = rows->cached[0];
    RowBatch next = *rows;
    next.begin = begin;
    next.cached = &cached;
    for (int64_t index = 0; index < budget; index++) {
        draftline_run(stack, cache, &next, hidden);
        float* here = logits + index * stride;
        predict_outputs(*stack, hidden + (begin[1] - 1) * stack->width, 1, here, stride, vocabulary, best + index);
        if (best[index] < 0) return index + 1;
        confidences[index] = stops.reads_scores() ? confidence(here, vocabulary, here[best[index]]) : 1;
        const double nats = stops.reads_entropy() ? entropy(here, vocabulary, here[best[index]]) : 0;
        if (entropies) entropies[index] = nats;
        best[index] = token_of(*stack, best[index]);
        if (stops.after(best[index], confidences[index], nats, cumulative)) return index + 1;
        cached += begin[1];
        begin[1] = 1;
        next.tokens = best + index;
    }
    return budget;
}

// Runs one row over its new tokens, of which the last `drafted` are a draft, and checks that by `rule`. Gives how many are kept;
// `best` (drafted + 1) holds what follows each of them, the token that replaces the first one not kept included; -1: broken. The
// head is a whole one: a token without an output would have no logit.
int64_t draftline_check_draft(const Stack* stack, const Cache* cache, const RowBatch* rows, int64_t drafted, const Acceptance* rule,
                              float* hidden, float* logits, int64_t stride, int64_t vocabulary, int32_t* best) {
    draftline_run(stack, cache, rows, hidden);
    const int64_t before = rows->begin[1] - drafted - 1;
    const int32_t* draft = rows->tokens + before + 1;
    draftline_predict(stack, hidden + before * stack->width, drafted + 1, logits, stride, vocabulary, best);
    return count_kept(*rule, logits, stride, vocabulary, best, draft, drafted);
}
}

#include "speculative_loop.h"  // which is made of the functions above
#include "replay.h"
#include "limits.h"
