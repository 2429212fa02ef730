// Runs hearthctl in the test's process, as a shell would run it.
//
// Thread safety: pure functions, except for effects of the command.
#ifndef HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_
#define HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/cli/console.h"
#include "services/hearthctl/cli.h"
#include "services/serving/json_value.h"
#include "tests/support/test_folder.h"

namespace hearth {

struct CliResult {
  int code = 0;
  std::string out, err;
  std::vector<Json> objects;  // the lines of `out` that are JSON objects, parsed

  // Returns the last JSON object of the output; an empty object if there is none.
  Json last() const { return objects.empty() ? Json::object() : objects.back(); }
};

// Runs a program. `progress`: behave as if standard error were a terminal. `program`: the program
// to run; default: hearthctl.
CliResult RunCli(const std::vector<std::string>& arguments, const std::string& input = "",
                 bool progress = false,
                 int (*program)(int, const char* const*, Console&) = RunHearthctl);

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_
