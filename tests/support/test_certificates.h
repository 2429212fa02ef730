// A certificate authority for a test; keys and certificates are created when the test runs.
#ifndef HEARTH_TESTS_SUPPORT_TEST_CERTIFICATES_H_
#define HEARTH_TESTS_SUPPORT_TEST_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cassert>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace hearth {

// A folder that is removed with the object.
class SecretFolder {
 public:
  SecretFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "hearth-secrets-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~SecretFolder() { std::filesystem::remove_all(path_); }
  // Writes `text` to a file, replacing the file atomically. Returns the path.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path + ".new", std::ios::binary) << text;
    std::filesystem::permissions(
        path + ".new", std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::rename(path + ".new", path);
    return path;
  }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class TestAuthority {
 public:
  struct Pem {
    std::string certificate, key;
  };

  TestAuthority() : key_(EVP_EC_gen("P-256")) { certificate_ = Make("authority", key_.get(), ""); }

  std::string certificate() const { return CertificatePem(certificate_.get()); }
  // Issues a certificate signed by this authority. It is valid for 127.0.0.1 too, so a server may
  // use it.
  Pem Issue(const std::string& common_name) {
    Key key(EVP_EC_gen("P-256"));
    const Certificate made = Make(common_name, key.get(), "IP:127.0.0.1");
    Bio out(BIO_new(BIO_s_mem()));
    PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return {CertificatePem(made.get()), Text(out.get())};
  }

 private:
  template <typename T, void (*Free)(T*)>
  struct Deleter {
    void operator()(T* value) const { Free(value); }
  };
  struct FreeBio {
    void operator()(BIO* bio) const { BIO_free(bio); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY, EVP_PKEY_free>>;
  using Certificate = std::unique_ptr<X509, Deleter<X509, X509_free>>;
  using Bio = std::unique_ptr<BIO, FreeBio>;

  static std::string Text(BIO* bio) {
    char* data = nullptr;
    const long bytes = BIO_get_mem_data(bio, &data);
    return std::string(data, static_cast<size_t>(bytes));
  }
  static std::string CertificatePem(X509* certificate) {
    Bio out(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(out.get(), certificate);
    return Text(out.get());
  }
  // Self-signed if there is no authority's certificate yet.
  Certificate Make(const std::string& name, EVP_PKEY* key, const std::string& alternative) {
    Certificate made(X509_new());
    X509_set_version(made.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), key);
    const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8, text, -1, -1,
                               0);
    X509* issuer = certificate_ == nullptr ? made.get() : certificate_.get();
    X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
    AddExtension(made.get(), NID_basic_constraints,
                 certificate_ == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
    if (!alternative.empty()) AddExtension(made.get(), NID_subject_alt_name, alternative);
    const int signed_bytes = X509_sign(made.get(), key_.get(), EVP_sha256());
    assert(signed_bytes > 0);
    (void)signed_bytes;
    return made;
  }
  static void AddExtension(X509* certificate, int kind, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  int serial_ = 0;
  Key key_;
  Certificate certificate_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_TEST_CERTIFICATES_H_
