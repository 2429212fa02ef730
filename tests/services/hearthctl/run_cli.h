// Runs hearthctl in this process, as a user would from a shell.
//
// Thread safety: pure functions apart from what the command does.
#ifndef HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_
#define HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "services/hearthctl/cli.h"
#include "services/hearthctl/json_text.h"
#include "tests/support/test_folder.h"

namespace hearth {

struct CliResult {
  int code = 0;
  std::string out, err;
  std::vector<Json> objects;  // lines of `out` that are JSON objects

  // The last object; an empty one when there is none.
  Json last() const { return objects.empty() ? Json::object() : objects.back(); }
};

inline CliResult RunCli(std::vector<std::string> arguments, const std::string& input = "") {
  std::vector<const char*> argv = {"hearthctl"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream in(input);
  std::ostringstream out, err;
  Console console{in, out, err};
  CliResult result;
  result.code = RunHearthctl(static_cast<int>(argv.size()), argv.data(), console);
  result.out = out.str();
  result.err = err.str();
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) result.objects.push_back(json);
  }
  return result;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_
