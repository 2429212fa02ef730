// CommandLine: parses a program's command line with CLI11: commands, each with flags and a function
// that runs it. The free functions declare kinds of flags that CLI11 does not have.
//
// Thread safety: none; used by main's thread.
// Ownership: the CommandLine owns its commands and the variables of the flags that Add returns. The
// caller owns all other variables, which must outlive Parse.
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

// Parses "250ms", "2s" or "1m": a duration of zero or more.
absl::StatusOr<absl::Duration> ParseFlagDuration(absl::string_view text);
// Returns the error of a flag whose value `text` is not one of `names`, a comma-separated list.
std::string NotOneOf(absl::string_view text, absl::string_view names);

// Adds a flag whose value is a duration such as "250ms", or a plain number of seconds. Parsing
// passes the value to `set`.
void AddDuration(CLI::App* command, const std::string& name,
                 const std::function<void(absl::Duration)>& set, const std::string& help);
// Adds a flag whose value is one word of `choices`. Parsing passes the number of the word to
// `choose`.
CLI::Option* AddChoice(CLI::App* command, const std::string& name,
                       const std::map<std::string, int>& choices,
                       const std::function<void(int)>& choose, const std::string& help);
// Adds the flag --json. Its help text is "one JSON object" followed by `which`.
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

  // Starts a group of commands: the help lists commands added after this call under the heading
  // `title`.
  void BeginGroup(const std::string& title) { group_ = title; }
  // Returns the parser of a program without commands, so that the caller can add flags. --man and
  // --reference are already declared.
  CLI::App* WithoutCommands();
  // Adds a command. `name` is one word, or two words for a command of a group, such as "state
  // save". `examples` are shown at the end of the command's help, one command line each. `run` runs
  // the command and returns the exit code. Returns the parser of the command, to which the caller
  // adds flags, and the struct in which parsing stores the values of these flags.
  template <typename Flags>
  std::pair<CLI::App*, Flags*> Add(const std::string& name, const std::string& what,
                                   const std::string& examples,
                                   int (*run)(const Flags&, Console&)) {
    const auto flags = std::make_shared<Flags>();
    const auto run_it = [=](Console& console) { return run(*flags, console); };
    return {AddCommand(name, what, examples, run_it), flags.get()};
  }
  // Returns the names of all commands, in the order in which they were added.
  std::vector<std::string> names() const;
  ProgramText Describe() const;
  // Returns the environment variables that give default values for flags.
  std::vector<std::string> variables() const;
  // Parses the command line and stores the flag values of the chosen command. Returns an exit code
  // if the program should end: --help or --version was printed, or the command line was wrong and
  // the error was printed to `console.err`.
  std::optional<int> Parse(std::vector<std::string> words, Console& console);
  // Runs the parsed command. REQUIRES: Parse returned no exit code.
  int RunChosen(Console& console) const;

 private:
  using Runner = std::function<int(Console&)>;
  CLI::App* AddCommand(const std::string& name, const std::string& what,
                       const std::string& examples, Runner run);
  std::string DescribeError(const std::string& parser_message) const;

  const std::unique_ptr<CLI::App> app_;
  std::vector<std::pair<const CLI::App*, Runner>> runners_;
  std::string group_ = "Commands";
  std::string page_;  // the manual page or the reference page, if a flag requested it
};

// Runs a program that has no commands. `declare` adds the program's flags. Returns the exit code.
int RunProgram(const CommandLineText& text, int argc, const char* const* argv, Console& outside,
               const std::function<void(CLI::App*)>& declare,
               const std::function<int(Console&)>& run);

}  // namespace hearth

#endif  // HEARTH_SERVICES_CLI_COMMAND_LINE_H_
