// The speculative loop for one greedy row and acceptance rules that are numbers, without Python between model runs.
//
// `tasks/decoding/loop.py` defines the loop. This reports each turn as a few integers; `tasks/decoding/turn.py` makes tokens,
// proposers and counts of them.

#pragma once

#include <algorithm>
#include <cmath>

extern "C" {

// Where a speculative cascade defers to the large model: where one of these bounds is crossed.
struct Deferral {
    double min_confidence, max_entropy, max_gain, max_entropy_gain, max_surprisal, max_gap, min_share;
};

// The draft rule, the acceptance rule, the limit, and the tokens that end a text for either model.
struct LoopRules {
    Acceptance acceptance;
    double fallback_threshold, stop_below, max_entropy;
    int32_t window, entropy_falls_back, first_from_target, ends_unverified, target_after_rollback, adds_bonus;
    int64_t limit;
    const int32_t *small_ends, *large_ends;
    int64_t small_end_count, large_end_count;
    const Deferral* deferral;  // of a cascade, whose acceptance rule this is then; otherwise none
};

// One of the two models, and the buffers of its runs; or a table in place of the small one.
struct LoopModel {
    const Stack* stack;
    const Cache* cache;
    float *hidden, *logits;  // of the longest run; (window + 1, stride), but (1, stride) for the small model without a deferral
    int64_t stride, vocabulary;
    const int32_t* next;  // of a table: what follows each token, how confidently, and the entropy there
    const double *confidence, *entropy;
};

// One turn: predictions of the drafter, drafted tokens, whether the drafter fell back, accepted tokens, whether the target ran,
// and whether it added a token.
struct Turn {
    int32_t predicted, drafted, fallback, accepted, verified, added;
};
}

namespace {

inline bool contains(const int32_t* ends, int64_t count, int32_t token) {
    return std::find(ends, ends + count, token) != ends + count;
}

// A batch of the only row, in the first slot: its new tokens after those that are cached.
struct OneRow {
    int32_t begin[2], cached, slot = 0;
    RowBatch rows;

    OneRow(const int32_t* tokens, int64_t from, int64_t to) : begin{0, int32_t(to - from)}, cached(from) {
        rows = {1, tokens + from, begin, &cached, &slot};
    }
};

// The text so far; `tokens` begin with the prompt.
struct Text {
    int32_t* tokens;
    int64_t prompt, count, small_cached = 0, large_cached = 0;
    bool target_goes_on = false;  // the last token is a correction, behind which the large model predicts one more by itself
    int64_t generated() const { return count - prompt; }
};

// What a model predicts at a position: the logits of its outputs, and its likeliest token, with the logit of that.
struct Prediction {
    const float* logits;
    int64_t outputs;
    int32_t best;
    float top;

    Prediction(const LoopModel& model, int64_t position, int32_t best)
        : logits(model.logits + position * model.stride), outputs(model.vocabulary), best(best), top(logits[output_of(*model.stack, best)]) {}
};

// Whether a position defers to the large model (Narasimhan et al., 2024, Table 1), whose head is a whole one.
bool defers(const Deferral& bounds, const Prediction& q, const Prediction& p) {
    const double share = std::exp(double(p.logits[q.best]) - p.top);
    if (share < bounds.min_share) return true;
    const double q_top = confidence(q.logits, q.outputs, q.top);
    if (q_top < bounds.min_confidence) return true;
    const double p_top = confidence(p.logits, p.outputs, p.top);
    if (p_top - q_top > bounds.max_gain || p_top - share * p_top > bounds.max_gap) return true;
    if (-std::log(share * p_top) > bounds.max_surprisal) return true;
    if (bounds.max_entropy == HUGE_VAL && bounds.max_entropy_gain == HUGE_VAL) return false;
    const double q_entropy = entropy(q.logits, q.outputs, q.top);
    return q_entropy > bounds.max_entropy || q_entropy - entropy(p.logits, p.outputs, p.top) > bounds.max_entropy_gain;
}

// Accepted tokens of a draft: each is accepted where its position does not defer, or where it is the large model's likeliest.
int32_t accepted_by_cascade(const LoopModel& small, const LoopModel& large, const Deferral& bounds, const int32_t* draft, int32_t drafted,
                            const int32_t* best) {
    for (int32_t index = 0; index < drafted; index++)
        if (draft[index] != best[index] && defers(bounds, {small, index, draft[index]}, {large, index, best[index]})) return index;
    return drafted;
}

// The token after a fully accepted draft of a cascade: one more prediction of the drafter, or the large model's. -1: broken.
int32_t bonus_by_cascade(const LoopModel& small, const LoopModel& large, const LoopRules& rules, Text& text, Turn& turn, int32_t p_best) {
    const OneRow row(text.tokens, text.small_cached, text.count);
    int32_t q_best;
    double unused;
    float* q = small.logits + turn.drafted * small.stride;
    draftline_continue(small.stack, small.cache, &row.rows, 1, 0, 0, HUGE_VAL, rules.small_ends, 0, small.hidden, q, 0, small.vocabulary,
                       &q_best, &unused, nullptr);
    turn.predicted++;
    if (q_best < 0) return -1;
    text.small_cached = text.count;
    return defers(*rules.deferral, {small, turn.drafted, q_best}, {large, turn.drafted, p_best}) ? p_best : q_best;
}

// Predicts by a table, as `draftline_continue` does by a model.
int32_t look_up(const LoopModel& table, const LoopRules& rules, int32_t last, int64_t budget, int32_t* best, double* confidence,
                double* entropies) {
    const DraftStops stops(rules.fallback_threshold, rules.stop_below, rules.max_entropy, rules.small_ends, rules.small_end_count);
    double cumulative = 1;
    for (int32_t index = 0; index < budget; index++) {
        best[index] = table.next[last];
        confidence[index] = stops.reads_scores() ? table.confidence[last] : 1;
        entropies[index] = stops.reads_entropy() ? table.entropy[last] : 0;
        if (stops.after(best[index], confidence[index], entropies[index], cumulative)) return index + 1;
        last = best[index];
    }
    return budget;
}

// Tokens that may be drafted behind the text.
int64_t budget_of(const LoopRules& rules, const Text& text) {
    if (text.target_goes_on || (rules.first_from_target && text.generated() == 0)) return 0;
    return std::min<int64_t>(rules.window, rules.limit - text.generated() - (rules.adds_bonus && !rules.ends_unverified));
}

// Cuts the predictions of a turn into its draft, which goes behind the text: without one that was not confident enough, and no
// further than a token that ends the text. `last_confidence` and `last_nats` are of the last prediction.
void cut_draft(const LoopRules& rules, const Text& text, Turn& turn, const int32_t* best, double last_confidence, double last_nats) {
    turn.fallback = last_confidence <= rules.fallback_threshold || (rules.entropy_falls_back && last_nats > rules.max_entropy);
    turn.drafted = turn.predicted - turn.fallback;
    for (int32_t index = 0; index < turn.drafted; index++)
        if (contains(rules.large_ends, rules.large_end_count, best[index])) {
            turn.drafted = index + 1;
            turn.fallback = 0;
        }
    std::copy(best, best + turn.drafted, text.tokens + text.count);
}

// 1. Drafts tokens behind the text. Returns false where the drafter's logits are broken.
bool propose(const LoopModel& small, const LoopRules& rules, Text& text, Turn& turn, int32_t* best, double* confidence,
             double* entropies) {
    const int64_t budget = budget_of(rules, text);
    if (budget <= 0) return true;
    const OneRow row(text.tokens, text.small_cached, text.count);
    turn.predicted = small.next ? look_up(small, rules, text.tokens[text.count - 1], budget, best, confidence, entropies)
                                : draftline_continue(small.stack, small.cache, &row.rows, budget, rules.fallback_threshold,
                                                     rules.stop_below, rules.max_entropy, rules.small_ends, rules.small_end_count,
                                                     small.hidden, small.logits, rules.deferral ? small.stride : 0, small.vocabulary,
                                                     best, confidence, entropies);
    if (best[turn.predicted - 1] < 0) return false;
    text.small_cached = text.count + turn.predicted - 1;
    cut_draft(rules, text, turn, best, confidence[turn.predicted - 1], entropies[turn.predicted - 1]);
    return true;
}

// Takes the accepted tokens of a draft behind the text, and says whether another one follows them.
void keep_accepted(const LoopRules& rules, Text& text, Turn& turn) {
    text.count += turn.accepted;
    const bool whole = turn.accepted == turn.drafted;
    const bool ended = turn.drafted > 0 && contains(rules.large_ends, rules.large_end_count, text.tokens[text.count - 1]);
    turn.added = !whole || (rules.adds_bonus && !ended);
    text.target_goes_on = rules.target_after_rollback && !whole;
}

// 3. Runs the target; 4. keeps a prefix; 5. adds a token. Returns false where a model's logits are broken; the drafter's if the
// turn is then not verified.
bool verify(const LoopModel& small, const LoopModel& large, const LoopRules& rules, Text& text, Turn& turn, int32_t* best) {
    const OneRow row(text.tokens, text.large_cached, text.count + turn.drafted);
    turn.verified = 1;
    turn.accepted = draftline_check_draft(large.stack, large.cache, &row.rows, turn.drafted, &rules.acceptance, large.hidden,
                                           large.logits, large.stride, large.vocabulary, best);
    if (std::find(best, best + turn.drafted + 1, -1) != best + turn.drafted + 1) return false;
    if (rules.deferral)
        turn.accepted = accepted_by_cascade(small, large, *rules.deferral, text.tokens + text.count, turn.drafted, best);
    const int64_t cached = text.count + turn.drafted;
    keep_accepted(rules, text, turn);
    if (turn.added && turn.accepted == turn.drafted && rules.deferral) {
        best[turn.drafted] = bonus_by_cascade(small, large, rules, text, turn, best[turn.drafted]);
        if (best[turn.drafted] < 0) {
            turn.verified = 0;
            return false;
        }
    }
    if (turn.added) text.tokens[text.count++] = best[turn.accepted];
    text.large_cached = std::min(cached, text.count - 1);
    text.small_cached = std::min(text.small_cached, text.count - 1);
    return true;
}

// Goes through the turns of a text, until it ends or has `limit` more tokens. Returns the number of turns, each of which is in
// `turns`; minus that number where a step returns false.
template <typename Propose, typename Verify>
int64_t run_turns(const LoopRules& rules, Text& text, Turn* turns, Propose propose, Verify verify) {
    for (int64_t count = 0;; count++) {
        Turn& turn = turns[count] = {};
        if (!propose(turn)) return -1 - count;
        // 2. BiLD's text may end inside a draft.
        const int32_t last = turn.drafted ? text.tokens[text.count + turn.drafted - 1] : 0;
        const bool full = text.generated() + turn.drafted == rules.limit;
        if (rules.ends_unverified && turn.drafted && (full || contains(rules.large_ends, rules.large_end_count, last)))
            return count + 1;
        if (!verify(turn)) return -1 - count;
        const bool ended = contains(rules.large_ends, rules.large_end_count, text.tokens[text.count - 1]) && !text.target_goes_on;
        if (ended || text.generated() >= rules.limit) return count + 1;
    }
}

}  // namespace

extern "C" {

// Writes a text behind its prompt of `prompt` tokens, until it ends or has `limit` more. Returns the number of turns, each of
// which is in `turns`. Where logits are broken, returns minus that number: the last turn's `verified` is 1 where the large
// model's are. `best` (window + 1), `confidence` and `entropies` (window) are buffers.
int64_t draftline_speculative_loop(const LoopModel* small, const LoopModel* large, const LoopRules* rules, int32_t* tokens,
                                   int64_t prompt, Turn* turns, int32_t* best, double* confidence, double* entropies) {
    Text text{tokens, prompt, prompt};
    return run_turns(
        *rules, text, turns, [&](Turn& turn) { return propose(*small, *rules, text, turn, best, confidence, entropies); },
        [&](Turn& turn) { return verify(*small, *large, *rules, text, turn, best); });
}
}
