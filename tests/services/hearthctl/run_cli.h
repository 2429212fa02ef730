// Runs hearthctl in this process, as a shell would.
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
  std::vector<Json> objects;  // lines of `out` that are JSON objects

  // Returns the last object; an empty object if there is none.
  Json last() const { return objects.empty() ? Json::object() : objects.back(); }
};

// `progress`: as if `err` were a terminal. `program`: the program to run.
CliResult RunCli(const std::vector<std::string>& arguments, const std::string& input = "",
                 bool progress = false,
                 int (*program)(int, const char* const*, Console&) = RunHearthctl);

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_
