#include <heed/random.h>
#include <heed/train.h>

#include "base/refuse.h"

#include <algorithm>
#include <array>
#include <span>

namespace heed {
namespace {

constexpr std::string_view alphabet = " abcdefghijklmnopqrstuvwxyz0123456789-,.'()[]{}?|:";
constexpr std::int64_t first_letter = 3;  // behind padding, start and end

/// Numbers from counters: draw n of example (seed, index) is the same everywhere.
class Dice {
public:
    Dice(std::uint64_t seed, std::int64_t index, std::uint32_t attempt)
        : seed_(seed), index_(static_cast<std::uint64_t>(index)), attempt_(attempt) {}

    /// 0 to count - 1
    std::int64_t roll(std::int64_t count) {
        const auto words = philox4x32(
            {draws_++, attempt_, static_cast<std::uint32_t>(index_), static_cast<std::uint32_t>(index_ >> 32U)},
            seed_ ^ 0x7461736b73ULL);
        return static_cast<std::int64_t>((static_cast<std::uint64_t>(words[0]) * static_cast<std::uint64_t>(count)) >>
                                         32U);
    }
    template <class T, std::size_t N>
    const T& pick(const std::array<T, N>& list) {
        return list[static_cast<std::size_t>(roll(static_cast<std::int64_t>(N)))];
    }

private:
    std::uint64_t seed_;
    std::uint64_t index_;
    std::uint32_t attempt_;
    std::uint32_t draws_ = 0;
};

/// A tenth is held out, by content alone, so that no seed moves an example from one side to the other.
bool is_held_out(std::uint64_t content) {
    return philox4x32({static_cast<std::uint32_t>(content), static_cast<std::uint32_t>(content >> 32U), 0, 0},
                      0x68656c646f7574ULL)[0] %
               10 ==
           0;
}

std::uint64_t hash_of(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325ULL;
    for (const char c : text) { hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL; }
    return hash;
}

// ---- dates ---------------------------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 12> months = {"january",   "february", "march",    "april",
                                                     "may",       "june",     "july",     "august",
                                                     "september", "october",  "november", "december"};
constexpr std::array<std::string_view, 7> weekdays = {"monday", "tuesday",  "wednesday", "thursday",
                                                      "friday", "saturday", "sunday"};
constexpr std::array<std::string_view, 31> ordinals = {
    "first",         "second",       "third",         "fourth",       "fifth",        "sixth",          "seventh",
    "eighth",        "ninth",        "tenth",         "eleventh",     "twelfth",      "thirteenth",     "fourteenth",
    "fifteenth",     "sixteenth",    "seventeenth",   "eighteenth",   "nineteenth",   "twentieth",      "twenty-first",
    "twenty-second", "twenty-third", "twenty-fourth", "twenty-fifth", "twenty-sixth", "twenty-seventh", "twenty-eighth",
    "twenty-ninth",  "thirtieth",    "thirty-first"};
constexpr std::array<std::string_view, 20> ones = {
    "",    "one",    "two",    "three",    "four",     "five",    "six",     "seven",     "eight",    "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 10> tens = {"",      "",      "twenty",  "thirty", "forty",
                                                   "fifty", "sixty", "seventy", "eighty", "ninety"};

std::string below_hundred(int n) {
    if (n < 20) { return std::string(ones[static_cast<std::size_t>(n)]); }
    std::string text(tens[static_cast<std::size_t>(n / 10)]);
    return n % 10 == 0 ? text : text + "-" + std::string(ones[static_cast<std::size_t>(n % 10)]);
}

/// 1907: "nineteen oh seven", 2000: "two thousand", 2019: "twenty nineteen".
std::string year_in_words(int year) {
    const int century = year / 100, rest = year % 100;
    if (year == 2000) { return "two thousand"; }
    if (rest == 0) { return below_hundred(century) + " hundred"; }
    if (year < 2010 && year > 2000) { return "two thousand " + below_hundred(rest); }
    return below_hundred(century) + (rest < 10 ? " oh " : " ") + below_hundred(rest);
}

struct Day {
    int year, month, day;  // month and day from 1
    std::int64_t number;   // since 1900-01-01, a Monday
};

bool is_leap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

int days_in(int month, int year) {
    constexpr std::array<int, 12> days = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[static_cast<std::size_t>(month - 1)] + (month == 2 && is_leap(year) ? 1 : 0);
}

Day day_of(std::int64_t number) {
    Day day{1900, 1, 1, number};
    std::int64_t left = number;
    while (left >= (is_leap(day.year) ? 366 : 365)) { left -= is_leap(day.year++) ? 366 : 365; }
    while (left >= days_in(day.month, day.year)) { left -= days_in(day.month++, day.year); }
    day.day = static_cast<int>(left) + 1;
    return day;
}

std::string suffix(int day) {
    if (day / 10 == 1) { return "th"; }
    return day % 10 == 1 ? "st" : day % 10 == 2 ? "nd" : day % 10 == 3 ? "rd" : "th";
}

std::string two_digits(int n) { return (n < 10 ? "0" : "") + std::to_string(n); }

constexpr std::int64_t last_day = 73049;  // 1900 to 2099

TaskExample date_example(Dice& dice, std::uint64_t& content) {
    const Day day = day_of(dice.roll(last_day));
    content = static_cast<std::uint64_t>(day.number);
    const std::string month(months[static_cast<std::size_t>(day.month - 1)]);
    const std::string ordinal(ordinals[static_cast<std::size_t>(day.day - 1)]);
    const std::string weekday(weekdays[static_cast<std::size_t>(day.number % 7)]);
    const std::string digits = std::to_string(day.day), year = std::to_string(day.year);
    std::string text;
    switch (dice.roll(8)) {
        case 0: text = month + " " + digits + ", " + year; break;
        case 1: text = digits + " " + month + " " + year; break;
        case 2: text = "the " + digits + suffix(day.day) + " of " + month + " " + year; break;
        case 3: text = weekday + ", " + digits + " " + month.substr(0, 3) + " " + year; break;
        case 4: text = month + " the " + ordinal + ", " + year_in_words(day.year); break;
        case 5: text = "the " + ordinal + " of " + month + ", " + year_in_words(day.year); break;
        case 6: text = weekday.substr(0, 3) + " " + month.substr(0, 3) + " " + digits + " " + year; break;
        default: text = digits + "." + std::to_string(day.month) + "." + year; break;
    }
    return {text, year + "-" + two_digits(day.month) + "-" + two_digits(day.day), ""};
}

// ---- grammar -------------------------------------------------------------------------------------------------------

constexpr std::array<std::string_view, 8> nouns = {"dog", "cat", "bird", "child", "king", "robot", "farmer", "star"};
constexpr std::array<std::string_view, 8> plurals = {"dogs",  "cats",   "birds",   "children",
                                                     "kings", "robots", "farmers", "stars"};
constexpr std::array<std::string_view, 6> adjectives = {"small", "old", "quiet", "green", "clever", "tired"};
constexpr std::array<std::array<std::string_view, 2>, 6> meeting = {{{"sees", "see"},
                                                                     {"likes", "like"},
                                                                     {"follows", "follow"},
                                                                     {"hears", "hear"},
                                                                     {"helps", "help"},
                                                                     {"finds", "find"}}};
constexpr std::array<std::array<std::string_view, 2>, 5> resting = {
    {{"sleeps", "sleep"}, {"sings", "sing"}, {"waits", "wait"}, {"laughs", "laugh"}, {"shines", "shine"}}};

std::string noun_phrase(Dice& dice, bool& plural, int depth) {
    plural = dice.roll(2) == 1;
    const auto noun = static_cast<std::size_t>(dice.roll(8));
    std::string text = plural ? (dice.roll(2) == 0 ? "the " : "some ") : (dice.roll(2) == 0 ? "the " : "a ");
    if (dice.roll(3) == 0) { text += std::string(dice.pick(adjectives)) + " "; }
    text += plural ? plurals[noun] : nouns[noun];
    // A clause in between: the verb that follows has to remember the noun before it.
    if (depth < 2 && dice.roll(4) == 0) {
        bool other = false;
        const std::string whom = noun_phrase(dice, other, depth + 1);
        text += " that " + std::string(dice.pick(meeting)[plural ? 1 : 0]) + " " + whom;
    }
    return text;
}

TaskExample grammar_example(Dice& dice, std::uint64_t& content) {
    bool plural = false;
    std::string text = noun_phrase(dice, plural, 0);
    if (dice.roll(3) == 0) {
        text += " " + std::string(dice.pick(resting)[plural ? 1 : 0]);
    } else {
        const std::string verb(dice.pick(meeting)[plural ? 1 : 0]);
        bool other = false;
        text += " " + verb + " " + noun_phrase(dice, other, 1);
    }
    text += ".";
    content = hash_of(text);
    return {"", text, ""};
}

// ---- letters -------------------------------------------------------------------------------------------------------

std::string letters(Dice& dice, std::int64_t count) {
    std::string text;
    for (std::int64_t n = 0; n < count; ++n) { text += static_cast<char>('a' + dice.roll(26)); }
    return text;
}

/// Two to eight pairs of a letter and a digit, all letters different, then some of the letters again: which digit
/// followed each? Letters come back at random, so that nothing but the pairs themselves tells the answer. Most examples
/// have few pairs: those are where a model that cannot look up yet finds out that it pays.
TaskExample induction_example(Dice& dice, std::uint64_t& content) {
    constexpr std::int64_t fewest = 2, most = 8, asked = 8;
    std::string keys = "abcdefghijklmnopqrstuvwxyz";
    for (std::size_t n = keys.size() - 1; n > 0; --n) {
        std::swap(keys[n], keys[static_cast<std::size_t>(dice.roll(static_cast<std::int64_t>(n) + 1))]);
    }
    const double share = static_cast<double>(dice.roll(1000)) / 1000;
    const auto pairs = fewest + static_cast<std::int64_t>(share * share * share * (most - fewest + 1));
    TaskExample example;
    for (std::int64_t n = 0; n < pairs; ++n) {
        example.source += keys[static_cast<std::size_t>(n)];
        example.source += static_cast<char>('0' + dice.roll(10));
    }
    content = hash_of(example.source);
    for (std::int64_t n = 0; n < asked; ++n) {
        example.target += example.source.substr(static_cast<std::size_t>(2 * dice.roll(pairs)), 2);
        example.asked += "01";
    }
    example.source += "|";
    return example;
}

TaskExample copy_example(Dice& dice, std::uint64_t& content) {
    const std::string text = letters(dice, 4 + dice.roll(13));
    content = hash_of(text);
    return {text + "|", text, ""};
}

/// Some closing brackets are asked for: their kind is that of the bracket they close.
TaskExample brackets_example(Dice& dice, std::uint64_t& content) {
    constexpr std::string_view open = "([{", close = ")]}";
    constexpr std::size_t length = 32;
    std::string text, whole, stack;
    while (text.size() + stack.size() < length || !stack.empty()) {
        const bool must_close = whole.size() + stack.size() >= length;
        if (!must_close && (stack.empty() || dice.roll(2) == 0)) {
            const auto kind = static_cast<std::size_t>(dice.roll(3));
            whole += open[kind];
            text += open[kind];
            stack += close[kind];
        } else if (!stack.empty()) {
            whole += stack.back();
            text += dice.roll(2) == 0 ? '?' : stack.back();
            stack.pop_back();
        }
    }
    std::string target;
    for (std::size_t n = 0; n < text.size(); ++n) { target += text[n] == '?' ? whole[n] : '.'; }
    content = hash_of(text);
    return {text, target, ""};
}

TaskExample sort_example(Dice& dice, std::uint64_t& content) {
    std::string text = letters(dice, 6 + dice.roll(11));
    content = hash_of(text);
    std::string sorted = text;
    std::ranges::sort(sorted);
    return {text, sorted, ""};
}

struct Task {
    std::string_view name;
    ModelKind kind;
    std::string_view what;
    TaskExample (*example)(Dice& dice, std::uint64_t& content);
};

constexpr std::array<Task, 6> list = {{
    {"dates", ModelKind::encoder_decoder, "dates in words to ISO dates: the first of may, nineteen oh seven",
     date_example},
    {"grammar", ModelKind::decoder, "sentences of a small grammar, whose verbs agree with nouns far back",
     grammar_example},
    {"induction", ModelKind::decoder,
     "pairs of a letter and a digit, then the letters again: which digit followed each?", induction_example},
    {"copy", ModelKind::decoder, "letters, then the same letters again", copy_example},
    {"brackets", ModelKind::encoder, "which bracket closes here?", brackets_example},
    {"sort", ModelKind::encoder, "letters in alphabetical order", sort_example},
}};

const Task& task_named(std::string_view name) {
    for (const Task& task : list) {
        if (task.name == name) { return task; }
    }
    std::string names;
    for (const Task& task : list) { names += (names.empty() ? "" : ", ") + std::string(task.name); }
    refuse("task_example", "task", "one of " + names, "'" + std::string(name) + "'");
}

}  // namespace

std::vector<TaskInfo> tasks() {
    std::vector<TaskInfo> result;
    for (const Task& task : list) { result.push_back({std::string(task.name), task.kind, std::string(task.what)}); }
    return result;
}

TaskExample task_example(std::string_view task, std::uint64_t seed, std::int64_t index, bool held_out) {
    const Task& known = task_named(task);
    // Drawn again until it falls on the side that is asked for: ten draws on average for the held-out ones.
    for (std::uint32_t attempt = 0;; ++attempt) {
        Dice dice(seed, index, attempt);
        std::uint64_t content = 0;
        TaskExample example = known.example(dice, content);
        if (is_held_out(content) == held_out) { return example; }
    }
}

std::int64_t task_vocab() { return first_letter + static_cast<std::int64_t>(alphabet.size()); }

std::vector<std::int64_t> task_encode(std::string_view text) {
    std::vector<std::int64_t> ids;
    for (const char c : text) {
        const std::size_t at = alphabet.find(c);
        if (at == std::string_view::npos) {
            refuse("task_encode", "text", "letters a to z, digits, spaces and " + std::string(alphabet.substr(37)),
                   "'" + std::string(1, c) + "'");
        }
        ids.push_back(first_letter + static_cast<std::int64_t>(at));
    }
    return ids;
}

std::string task_decode(std::span<const std::int64_t> ids) {
    std::string text;
    for (const std::int64_t id : ids) {
        if (id == 2) { break; }  // the end
        if (id >= first_letter && id < task_vocab()) { text += alphabet[static_cast<std::size_t>(id - first_letter)]; }
    }
    return text;
}

}  // namespace heed
