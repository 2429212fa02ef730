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

#include "services/hearthctl/console.h"
#include "services/hearthctl/json_value.h"

namespace hearth {

struct CliResult {
  int code = 0;
  std::string out, err;
  std::vector<Json> objects;  // lines of `out` that are JSON objects

  // The last object; an empty one when there is none.
  Json last() const { return objects.empty() ? Json::Object() : objects.back(); }
};

CliResult RunCli(const std::vector<std::string>& arguments, const std::string& input = "");

// A folder of its own, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string name = ::testing::TempDir() + "hearthctl-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(File(name), std::ios::binary) << content;
    return File(name);
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(File(name), std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
  }
  size_t Files() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) count += entry.exists();
    return count;
  }

 private:
  std::string path_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_HEARTHCTL_RUN_CLI_H_
