#include "tests/services/hearthctl/run_cli.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "services/hearthctl/cli.h"

namespace hearth {
namespace {

// Removes the variables of the caller's shell, such as HEARTHCTL_WORKER: they change the results of
// the commands.
class NoVariables : public testing::Environment {
 public:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      if (absl::StartsWith(text, "HEARTHCTL_")) names.push_back(text.substr(0, text.find('=')));
    }
    for (const std::string& name : names) unsetenv(name.c_str());
  }
};
testing::Environment* const kNoVariables = testing::AddGlobalTestEnvironment(new NoVariables);

}  // namespace

CliResult RunCli(const std::vector<std::string>& arguments, const std::string& input, bool progress,
                 int (*program)(int, const char* const*, Console&)) {
  std::vector<const char*> argv = {"hearthctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream in(input);
  std::ostringstream out, err;
  Console console{in, out, err};
  console.progress = progress;
  CliResult result;
  result.code = program(static_cast<int>(argv.size()), argv.data(), console);
  result.out = out.str();
  result.err = err.str();
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) result.objects.push_back(std::move(json));
  }
  return result;
}

}  // namespace hearth
