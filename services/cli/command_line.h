// CommandLine: a program's command line: commands, each with its flags. Only this and flags.cc know
// the library that parses it, so that a command's file compiles fast.
//
// Thread safety: none; used by main's thread.
// Ownership: the CommandLine owns its commands, and these own their flags. The variables behind the
// flags are the caller's, and outlive Parse.
#ifndef HEARTH_SERVICES_CLI_COMMAND_LINE_H_
#define HEARTH_SERVICES_CLI_COMMAND_LINE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/cli/console.h"
#include "services/cli/program_text.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hearth {

// "250ms", "2s", "1m": a duration of zero or more.
absl::StatusOr<absl::Duration> ParseFlagDuration(absl::string_view text);
// The same, or a plain number of seconds.
absl::StatusOr<absl::Duration> ParseDurationOrSeconds(absl::string_view text);
// Why a flag refuses `text`. `names`: its valid values, with commas.
std::string NotOneOf(absl::string_view text, absl::string_view names);

// One declared flag. Each method sets a property and returns the flag, so that calls chain.
class CommandFlag {
 public:
  explicit CommandFlag(CLI::Option* option) : option_(option) {}

  CommandFlag& Required();
  // Help shows the variable's present value.
  CommandFlag& ShowDefault();
  // Help shows `text`, such as FILE, in place of the value's type.
  CommandFlag& Placeholder(const std::string& text);
  // Help shows it under this heading.
  CommandFlag& Heading(const std::string& title);
  // The environment variable that gives the value when the command line does not.
  CommandFlag& Variable(const std::string& name);
  // `wrong` returns the mistake in a value, or an empty text.
  CommandFlag& Check(const std::function<std::string(const std::string&)>& wrong);
  CommandFlag& NotNegative();
  CommandFlag& Between(double least, double most);
  // For a list: one word has several values, as in 1,2,3.
  CommandFlag& SplitAtCommas();
  // For a list: each flag takes one value only.
  CommandFlag& OneValueEach();
  // Sets `*given` when the flag is given, even with an empty value.
  CommandFlag& Mark(bool* given);

 private:
  CLI::Option* option_;
};

// The flags of one command, or of a group of them.
class CommandFlags {
 public:
  explicit CommandFlags(CLI::App* app) : app_(app) {}

  // `name`: "--flag", "--flag,-f", or a plain word for a positional argument. The variable gets the
  // value, and is unchanged without the flag. `T`: std::string, int, uint32_t, uint64_t, float,
  // double, or an optional one of uint32_t, uint64_t, float; a list of strings, uint32_t or double,
  // which may be given more than once; absl::Duration, as "250ms", "2s", "1m" or seconds.
  template <typename T>
  CommandFlag Add(const std::string& name, T* value, const std::string& help);
  // A flag without a value.
  CommandFlag AddSwitch(const std::string& name, bool* value, const std::string& help);
  // Flags and words that many commands have. `which` follows "one JSON object" in the help.
  CommandFlag AddJson(bool* json, const std::string& which = "");
  CommandFlag AddForce(bool* force, const std::string& help = "replace the file if it exists");
  CommandFlag AddPoint(std::string* id);
  CommandFlag AddSnapshot(const std::string& name, std::string* path);
  // One word of `choices`; `choose` gets its number.
  CommandFlag AddChoice(const std::string& name, const std::map<std::string, int>& choices,
                        const std::function<void(int)>& choose, const std::string& help);
  // A group of which exactly one flag must be given.
  CommandFlags AddOneOf(const std::string& name, const std::string& help);

  std::string name() const;
  // Whether Parse found this command.
  bool chosen() const;

 private:
  CLI::App* app_;
};

struct CommandLineText {
  std::string program, about, footer, version;
};

class CommandLine {
 public:
  explicit CommandLine(const CommandLineText& text);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Help shows the commands that follow under this heading.
  void BeginGroup(const std::string& title) { group_ = title; }
  // The flags of a program that has no commands; --man and --reference are among them.
  CommandFlags* WithoutCommands();
  // `name`: a word, or two for one of several commands that belong together. `footer` ends the
  // command's help.
  CommandFlags* AddCommand(const std::string& name, const std::string& what,
                           const std::string& footer);
  // Of all commands, in the order in which they were added.
  std::vector<std::string> names() const;
  ProgramText Describe() const;
  // The environment variables that some command's flag reads.
  std::vector<std::string> variables() const;
  // Sets the variables of the chosen command. Returns an exit code when there is nothing left to
  // do: help or the version was printed, or the command line was wrong, as `console.err` explains.
  std::optional<int> Parse(std::vector<std::string> words, Console& console);

 private:
  std::string WhatIsWrong(const std::string& parser_message) const;

  const std::unique_ptr<CLI::App> app_;
  std::deque<CommandFlags> commands_;
  std::string group_ = "Commands";
  std::string page_;  // that is shown instead
};

// Runs a program without commands: `declare` adds its flags. Returns the exit code.
int RunProgram(const CommandLineText& text, int argc, const char* const* argv, Console& outside,
               const std::function<void(CommandFlags*)>& declare,
               const std::function<int(Console&)>& run);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_COMMAND_LINE_H_
