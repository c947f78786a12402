// The one loop of decoding (`tasks/decoding/loop.py`) for one row, greedy, by rules that are numbers: nothing in between.

#pragma once

#include <algorithm>

extern "C" {

// The rules, and the tokens that end a text for either model.
struct Rules {
    double fallback, trust, distance;
    int32_t agreed, window, first_from_target, ends_unverified;
    int64_t limit;
    const int32_t *small_ends, *large_ends;
    int64_t small_end_count, large_end_count;
};

// What one model of the two needs for its runs.
struct Player {
    const Stack* stack;
    const Cache* cache;
    float *hidden, *logits;  // of the longest run; (1, stride) of the small model, (window + 1, stride) of the large one
    int64_t stride, vocabulary;
};

// What became of one turn.
struct Turn {
    int32_t seen, drafted, fallback, kept, judged, followed;
};
}

namespace {

inline bool among(const int32_t* ends, int64_t count, int32_t token) { return std::find(ends, ends + count, token) != ends + count; }

// New tokens of the only row, after those cached in its slot, the first.
struct OneRow {
    int32_t begin[2], cached, slot = 0;
    Rows rows;

    OneRow(const int32_t* tokens, int64_t from, int64_t to) : begin{0, int32_t(to - from)}, cached(from) {
        rows = {1, tokens + from, begin, &cached, &slot};
    }
};

// The row on its way: `tokens` begin with the prompt.
struct Text {
    int32_t* tokens;
    int64_t prompt, count, small_cached = 0, large_cached = 0;
    int64_t generated() const { return count - prompt; }
};

// 1. The drafter proposes, behind the text; false where its logits are broken.
bool propose(const Player& small, const Rules& rules, Text& text, Turn& turn, int32_t* best, double* confident) {
    const int64_t room = rules.limit - text.generated() - (rules.ends_unverified ? 0 : 1);
    const int64_t budget = rules.first_from_target && text.generated() == 0 ? 0 : std::min<int64_t>(rules.window, room);
    if (budget <= 0) return true;
    const OneRow row(text.tokens, text.small_cached, text.count);
    turn.seen = draftline_continue(small.stack, small.cache, &row.rows, budget, rules.fallback, rules.trust, rules.small_ends,
                                 rules.small_end_count, small.hidden, small.logits, 0, small.vocabulary, best, confident);
    if (best[turn.seen - 1] < 0) return false;
    turn.fallback = confident[turn.seen - 1] <= rules.fallback;
    turn.drafted = turn.seen - turn.fallback;
    text.small_cached = text.count + turn.seen - 1;
    for (int32_t place = 0; place < turn.drafted; place++)
        if (among(rules.large_ends, rules.large_end_count, best[place])) {
            turn.drafted = place + 1;
            turn.fallback = 0;
        }
    std::copy(best, best + turn.drafted, text.tokens + text.count);
    return true;
}

// 3. The target runs; 4. a prefix is kept; 5. a token is added. False where its logits are broken.
bool verify(const Player& large, const Rules& rules, Text& text, Turn& turn, int32_t* best) {
    const OneRow row(text.tokens, text.large_cached, text.count + turn.drafted);
    turn.judged = 1;
    turn.kept = draftline_check_draft(large.stack, large.cache, &row.rows, turn.drafted, rules.distance, rules.agreed, large.hidden,
                                large.logits, large.stride, large.vocabulary, best);
    if (std::find(best, best + turn.drafted + 1, -1) != best + turn.drafted + 1) return false;
    const int64_t cached = text.count + turn.drafted;
    text.count += turn.kept;
    const bool whole = turn.kept == turn.drafted && turn.drafted > 0;
    turn.followed = !(whole && among(rules.large_ends, rules.large_end_count, text.tokens[text.count - 1]));
    if (turn.followed) text.tokens[text.count++] = best[turn.kept];
    text.large_cached = std::min(cached, text.count - 1);
    text.small_cached = std::min(text.small_cached, text.count - 1);
    return true;
}

}  // namespace

extern "C" {

// Writes a text behind its prompt of `prompt` tokens, until it ends or has `limit` more. Gives how many turns it took, of which
// `turns` says what they did; where logits were broken, less than 0: the last turn, whose `judged` says whether by the large one.
// `best` (window + 1) and `confident` (window): room.
int64_t draftline_speculative_loop(const Player* small, const Player* large, const Rules* rules, int32_t* tokens, int64_t prompt, Turn* turns,
                       int32_t* best, double* confident) {
    Text text{tokens, prompt, prompt};
    for (int64_t count = 0;; count++) {
        Turn& turn = turns[count] = {};
        if (!propose(*small, *rules, text, turn, best, confident)) return -1 - count;
        // 2. BiLD's text may end inside a draft.
        const int32_t last = turn.drafted ? tokens[text.count + turn.drafted - 1] : 0;
        const bool over = text.generated() + turn.drafted == rules->limit;
        if (rules->ends_unverified && turn.drafted && (over || among(rules->large_ends, rules->large_end_count, last)))
            return count + 1;
        if (!verify(*large, *rules, text, turn, best)) return -1 - count;
        if (among(rules->large_ends, rules->large_end_count, tokens[text.count - 1]) || text.generated() >= rules->limit)
            return count + 1;
    }
}
}
