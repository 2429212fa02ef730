// Damage of a data folder while nobody has it open, and its repair.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/disk/verify.h"
#include "tests/simulation/world.h"

namespace hearth {

// 28: one bit of one file flips, or the file is cut, or gone.
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

// 33: as it was or repaired, and nothing in it that its digests do not prove.
void World::Repair(Dice* dice) {
  RepairOptions options;
  options.secret_file = node_.options().secret_file;
  options.now = time_.store_clock()->Now();
  const bool fails_first = dice->Chance(40);
  const int nth = 1 + static_cast<int>(dice->Roll(60));
  if (fails_first && node_.is_damaged()) {
    options.env = node_.disk()->env();
    node_.disk()->Arm(DiskFault::kFailedWrite, nth);
    const auto failed = RepairDataDir(node_.folder(), options);
    node_.disk()->Disarm();
    time_.Aside(absl::StrCat("a repair on a failing disk: ", failed.status().ToString()));
    if (failed.ok()) node_.NoteRepair(*failed);
    options.env = nullptr;
  }
  const auto report = RepairDataDir(node_.folder(), options);
  if (!report.ok()) return time_.Violated(33, report.status().ToString());
  time_.Note(report->was_healthy ? "a repair finds nothing" : "the data folder is repaired");
  node_.NoteRepair(*report);
  if (report->was_healthy) return;
  time_.Aside(absl::StrCat(report->restore_points, " restore points kept, ", report->lost_points,
                           " lost, ", report->damaged_files, " files damaged"));
  for (const auto* lines : {&report->damage, &report->lost}) {
    for (const std::string& line : *lines) time_.Aside(line);
  }
  const auto verified = VerifyDataDir(node_.folder());
  if (!verified.ok()) return time_.Violated(33, verified.status().ToString());
  // The next start counts losses; until then verify reports them.
  if (verified->is_whole() && verified->missing_points <= report->lost_points) return;
  time_.Violated(33, absl::StrCat("repaired: ", verified->problems[0]));
}

}  // namespace hearth
