// Reads and writes whole files, for tests only.
#ifndef HEARTH_TESTS_WORKER_MODEL_FILE_KIT_H_
#define HEARTH_TESTS_WORKER_MODEL_FILE_KIT_H_

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "nlohmann/json.hpp"

namespace hearth {

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Returns the bytes of a safetensors file: header length as u64, JSON header, data.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

// The header and the data of a safetensors file, which can be changed.
struct SafetensorsParts {
  nlohmann::json header;
  std::string data;

  explicit SafetensorsParts(const std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    header = nlohmann::json::parse(bytes.substr(sizeof(length), length));
    data = bytes.substr(sizeof(length) + length);
  }
  std::string Bytes() const { return SafetensorsBytes(header.dump(), data); }

  // Appends a float32 tensor of zeros.
  void Add(const std::string& name, size_t elements) {
    const size_t begin = data.size(), end = begin + elements * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", {elements}}, {"data_offsets", {begin, end}}};
    data.resize(end);
  }
  void Rename(const std::string& from, const std::string& to) {
    header[to] = header.at(from);
    header.erase(from);
  }
};

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_MODEL_FILE_KIT_H_
