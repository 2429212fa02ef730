// CommandLine: a program's command line, read by CLI11: commands, each with its flags and the
// function that runs it; and the kinds of flags that CLI11 does not have.
//
// Thread safety: none; used by main's thread.
// Ownership: the CommandLine owns its commands, and the variables behind the flags of Add. Other
// variables are the caller's, and outlive Parse.
#ifndef HEARTH_SERVICES_CLI_COMMAND_LINE_H_
#define HEARTH_SERVICES_CLI_COMMAND_LINE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
// Why a flag refuses `text`. `names`: its valid values, with commas.
std::string NotOneOf(absl::string_view text, absl::string_view names);

// A duration as above, or in seconds, which goes to `set`.
void AddDuration(CLI::App* command, const std::string& name,
                 const std::function<void(absl::Duration)>& set, const std::string& help);
// One word of `choices`; `choose` gets its number.
CLI::Option* AddChoice(CLI::App* command, const std::string& name,
                       const std::map<std::string, int>& choices,
                       const std::function<void(int)>& choose, const std::string& help);
// --json. `which` follows "one JSON object" in the help.
void AddJson(CLI::App* command, bool* json, const std::string& which = "");
void AddForce(CLI::App* command, bool* force,
              const std::string& help = "replace the file if it exists");

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
  CLI::App* WithoutCommands();
  // Adds a command. `name`: a word, or two for one of several commands that belong together.
  // `examples` ends its help, one command a line. `run` returns the exit code. Returns the command
  // with the variables for its flags, which the caller declares.
  template <typename Flags>
  std::pair<CLI::App*, Flags*> Add(const std::string& name, const std::string& what,
                                   const std::string& examples,
                                   int (*run)(const Flags&, Console&)) {
    const auto flags = std::make_shared<Flags>();
    const auto run_it = [=](Console& console) { return run(*flags, console); };
    return {AddCommand(name, what, examples, run_it), flags.get()};
  }
  // Of all commands, in the order in which they were added.
  std::vector<std::string> names() const;
  ProgramText Describe() const;
  // The environment variables that some command's flag reads.
  std::vector<std::string> variables() const;
  // Sets the variables of the chosen command. Returns an exit code when there is nothing left to
  // do: help or the version was printed, or the command line was wrong, as `console.err` explains.
  std::optional<int> Parse(std::vector<std::string> words, Console& console);
  // Runs the command that was parsed. REQUIRES: Parse returned nothing.
  int RunChosen(Console& console) const;

 private:
  using Runner = std::function<int(Console&)>;
  CLI::App* AddCommand(const std::string& name, const std::string& what,
                       const std::string& examples, Runner run);
  std::string DescribeError(const std::string& parser_message) const;

  const std::unique_ptr<CLI::App> app_;
  std::vector<std::pair<const CLI::App*, Runner>> runners_;
  std::string group_ = "Commands";
  std::string page_;  // that is shown instead
};

// Runs a program without commands: `declare` adds its flags. Returns the exit code.
int RunProgram(const CommandLineText& text, int argc, const char* const* argv, Console& outside,
               const std::function<void(CLI::App*)>& declare,
               const std::function<int(Console&)>& run);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_COMMAND_LINE_H_
