#include "services/cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/cli/near_words.h"

namespace hearth {
namespace {

// Returns the options of a command and of its option groups. If `commands` is true, also returns
// the options of its subcommands.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& app, bool commands) {
  std::vector<const CLI::Option*> options = app.get_options();
  for (const CLI::App* below : app.get_subcommands(nullptr)) {
    if (!commands && !below->get_name().empty()) continue;
    const std::vector<const CLI::Option*> more = OptionsOf(*below, commands);
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseFlagDuration(absl::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be a duration such as 250ms, 2s or 1m; got \"", text, "\""));
  }
  return duration;
}

std::string NotOneOf(absl::string_view text, absl::string_view names) {
  return absl::StrCat("must be one of ", names, "; got \"", text, "\"");
}

void AddDuration(CLI::App* command, const std::string& name,
                 const std::function<void(absl::Duration)>& set, const std::string& help) {
  const auto take = [name, set](const std::string& text) {
    const bool is_number = text.find_first_not_of("0123456789.") == std::string::npos;
    const auto parsed = ParseFlagDuration(is_number ? text + "s" : text);
    if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
    set(*parsed);
  };
  command->add_option_function<std::string>(name, take, help)->option_text("DURATION");
}

// CLI11's own CheckedTransformer would print the enum's numbers in the help.
CLI::Option* AddChoice(CLI::App* command, const std::string& name,
                       const std::map<std::string, int>& choices,
                       const std::function<void(int)>& choose, const std::string& help) {
  const auto words = [choices](absl::string_view separator) {
    return absl::StrJoin(choices, separator,
                         [](std::string* out, const auto& choice) { *out += choice.first; });
  };
  const auto take = [=](const std::string& text) {
    const auto chosen = choices.find(text);
    if (chosen == choices.end()) throw CLI::ValidationError(name, NotOneOf(text, words(", ")));
    choose(chosen->second);
  };
  return command->add_option_function<std::string>(name, take, help)->type_name(words("|"));
}

void AddJson(CLI::App* command, bool* json, const std::string& which) {
  command->add_flag("--json", *json, "one JSON object" + which);
}

void AddForce(CLI::App* command, bool* force, const std::string& help) {
  command->add_flag("--force", *force, help);
}

CommandLine::CommandLine(const CommandLineText& text)
    : app_(std::make_unique<CLI::App>(text.about, text.program)) {
  app_->footer(text.footer);
  app_->require_subcommand(1);
  app_->set_version_flag("--version", text.version);
}

CommandLine::~CommandLine() = default;

CLI::App* CommandLine::WithoutCommands() {
  app_->require_subcommand(0);
  AddPageFlags("1", app_.get(), &page_);
  return app_.get();
}

CLI::App* CommandLine::AddCommand(const std::string& name, const std::string& what,
                                  const std::string& examples, Runner run) {
  const std::vector<std::string> words = absl::StrSplit(name, ' ');
  CLI::App* parent = app_.get();
  if (words.size() > 1) {
    const std::vector<CLI::App*> known = app_->get_subcommands(
        [&](const CLI::App* command) { return command->get_name() == words[0]; });
    parent = known.empty() ? app_->add_subcommand(words[0], "See " + words[0] + " --help")
                           : known.front();
    parent->require_subcommand(1);
  }
  CLI::App* command = parent->add_subcommand(words.back(), what);
  command->footer("\nExamples:\n" + examples);
  (parent == app_.get() ? command : parent)->group(group_);
  runners_.emplace_back(command, std::move(run));
  return command;
}

int CommandLine::RunChosen(Console& console) const {
  const auto chosen = std::find_if(runners_.begin(), runners_.end(),
                                   [](const auto& runner) { return runner.first->parsed(); });
  assert(chosen != runners_.end());
  return chosen->second(console);
}

std::vector<std::string> CommandLine::names() const {
  std::vector<std::string> names;
  for (const CLI::App* command : app_->get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  return names;
}

std::optional<int> CommandLine::Parse(std::vector<std::string> words, Console& console) {
  if (words.empty() && app_->get_require_subcommand_min() > 0) {
    console.err << app_->help() << std::flush;
    return kExitUsage;
  }
  try {
    std::reverse(words.begin(), words.end());  // CLI11 expects the words in reverse order
    app_->parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    // CLI11 also throws for --help and --version; the exception then has exit code 0.
    if (error.get_exit_code() == 0) {
      console.out << page_ << std::flush;
      if (page_.empty()) app_->exit(error, console.out, console.err);
      return kExitOk;
    }
    return FailUsage(console, DescribeError(error.what()));
  }
  return std::nullopt;
}

// Reports unknown flags first, then unknown words, because an unknown word may cause the other
// parser errors.
std::string CommandLine::DescribeError(const std::string& parser_message) const {
  const CLI::App* command = app_.get();
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::string extra;
  for (const std::string& word : app_->remaining(/*recurse=*/true)) {
    if (word.size() < 2 || word[0] != '-') {
      extra = extra.empty() ? word : extra;
      continue;
    }
    const std::string flag = word.substr(0, word.find('='));
    std::vector<std::string> known;
    for (const CLI::Option* option : OptionsOf(*command, false)) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    return absl::StrCat("unknown flag ", flag, " of ", command->get_name(),
                        DidYouMean(flag, known));
  }
  if (!extra.empty()) {
    return absl::StrCat("unexpected argument \"", extra, "\" of ", command->get_name(),
                        ": put a text with spaces in quotes");
  }
  std::string message = parser_message;
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
}

int RunProgram(const CommandLineText& text, int argc, const char* const* argv, Console& outside,
               const std::function<void(CLI::App*)>& declare,
               const std::function<int(Console&)>& run) {
  return RunSafely(outside, [&](Console& console) {
    CommandLine line(text);
    declare(line.WithoutCommands());
    const std::optional<int> ended = line.Parse({argv + 1, argv + argc}, console);
    return ended.has_value() ? *ended : run(console);
  });
}

ProgramText CommandLine::Describe() const { return DescribeProgram(*app_); }

std::vector<std::string> CommandLine::variables() const {
  std::set<std::string> names;
  for (const CLI::Option* option : OptionsOf(*app_, true)) {
    if (!option->get_envname().empty()) names.insert(option->get_envname());
  }
  return {names.begin(), names.end()};
}

}  // namespace hearth
