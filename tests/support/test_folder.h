// TestFolder: a folder for one test, removed with its contents at the end.
//
// Tests, and shards of one program, run in parallel, so a folder with a fixed name would be shared.
// Thread safety: none.
#ifndef HEARTH_TESTS_SUPPORT_TEST_FOLDER_H_
#define HEARTH_TESTS_SUPPORT_TEST_FOLDER_H_

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace hearth {

class TestFolder {
 public:
  TestFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "hearth_test_XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      std::perror(path.c_str());
      std::abort();
    }
    path_ = path;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file. Returns its path.
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

#endif  // HEARTH_TESTS_SUPPORT_TEST_FOLDER_H_
