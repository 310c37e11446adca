#pragma once

namespace CLI {
class App;
}

/// Each adds one command to the program; the command runs when the program's arguments are parsed.
void add_attend(CLI::App& app);
void add_cache(CLI::App& app);
void add_chat(CLI::App& app);
void add_compare(CLI::App& app);
void add_convert(CLI::App& app);
void add_eval(CLI::App& app);
void add_embed(CLI::App& app);
void add_explain(CLI::App& app);
void add_forward(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_patterns(CLI::App& app);
void add_positions(CLI::App& app);
void add_score(CLI::App& app);
void add_serve(CLI::App& app);
void add_size(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_train(CLI::App& app);
void add_translate(CLI::App& app);
void add_walkthrough(CLI::App& app);
