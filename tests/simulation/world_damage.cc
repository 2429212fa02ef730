// Damages a data folder while no process has the folder open.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/simulation/world.h"

namespace hearth {

// For invariant 28: damages one file. Flips a bit, truncates the file or removes the file.
void World::Damage(Dice* dice) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(node_.folder())) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "LOCK" && name != "reserve" && entry.file_size() > 0) {
      files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) return;
  const std::string& path = files[dice->Roll(files.size())];
  const uint64_t at = dice->Roll(std::filesystem::file_size(path)), what = dice->Roll(6);
  node_.SetDamaged();
  ++figures_.faults;
  const std::string name = std::filesystem::path(path).filename().string();
  if (what == 0) {
    std::filesystem::remove(path);
    return time_.Note(absl::StrCat(name, " is gone"));
  }
  if (what == 1) {
    std::filesystem::resize_file(path, at);
    return time_.Note(absl::StrCat(name, " is cut"));
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ (1 << dice->Roll(8)));
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
  time_.Note(absl::StrCat("a bit of ", name, " flips"));
}

}  // namespace hearth
