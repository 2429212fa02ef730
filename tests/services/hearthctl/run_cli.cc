#include "tests/services/hearthctl/run_cli.h"

#include <sstream>
#include <utility>

#include "services/hearthctl/cli.h"

namespace hearth {
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
