// What a turn does to the text of a row, whoever predicts: the models (`speculative_loop.h`) or predictions known before (`replay.h`).
//
// `tasks/decoding/turn.py` defines it, and makes tokens, proposers and counts of the turns that are reported.

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

// One turn: predictions of the drafter, drafted tokens, whether the drafter fell back, accepted tokens, whether the target ran,
// and whether it added a token.
struct Turn {
    int32_t predicted, drafted, fallback, accepted, verified, added;
};

// The text so far; `tokens` begin with the prompt.
struct Text {
    int32_t* tokens;
    int64_t prompt, count, small_cached, large_cached;
    int32_t target_goes_on;  // the last token is a correction, behind which the large model predicts one more by itself
    int64_t generated() const { return count - prompt; }
};
}

namespace {

inline bool contains(const int32_t* ends, int64_t count, int32_t token) {
    return std::find(ends, ends + count, token) != ends + count;
}

inline bool ends_text(const LoopRules& rules, int32_t token) { return contains(rules.large_ends, rules.large_end_count, token); }

inline DraftStops draft_stops(const LoopRules& rules) {
    return {rules.fallback_threshold, rules.stop_below, rules.max_entropy, rules.small_ends, rules.small_end_count};
}

// Tokens that may be drafted behind the text.
int64_t budget_of(const LoopRules& rules, const Text& text) {
    if (text.target_goes_on || (rules.first_from_target && text.generated() == 0)) return 0;
    return std::min<int64_t>(rules.window, rules.limit - text.generated() - (rules.adds_bonus && !rules.ends_unverified));
}

// Cuts the predictions of a turn into its draft: without one that was not confident enough, and no further than a token that ends
// the text. `last_confidence` and `last_nats` are of the last prediction.
void cut_draft(const LoopRules& rules, Turn& turn, const int32_t* predicted, double last_confidence, double last_nats) {
    turn.fallback = last_confidence <= rules.fallback_threshold || (rules.entropy_falls_back && last_nats > rules.max_entropy);
    turn.drafted = turn.predicted - turn.fallback;
    for (int32_t index = 0; index < turn.drafted; index++)
        if (ends_text(rules, predicted[index])) {
            turn.drafted = index + 1;
            turn.fallback = 0;
        }
}

// Whether the text ends with its draft, which the target then does not see, as BiLD's may.
bool ends_unverified(const LoopRules& rules, const Text& text, const Turn& turn) {
    if (!rules.ends_unverified || !turn.drafted) return false;
    return text.generated() + turn.drafted == rules.limit || ends_text(rules, text.tokens[text.count + turn.drafted - 1]);
}

// Takes the accepted tokens of a draft behind the text, and says whether another one follows them.
void keep_accepted(const LoopRules& rules, Text& text, Turn& turn) {
    text.count += turn.accepted;
    const bool whole = turn.accepted == turn.drafted;
    const bool ended = turn.drafted > 0 && ends_text(rules, text.tokens[text.count - 1]);
    turn.added = !whole || (rules.adds_bonus && !ended);
    text.target_goes_on = rules.target_after_rollback && !whole;
}

// Whether the text ends with a turn that was verified.
bool ended(const LoopRules& rules, const Text& text) {
    return text.generated() >= rules.limit || (ends_text(rules, text.tokens[text.count - 1]) && !text.target_goes_on);
}

}  // namespace
