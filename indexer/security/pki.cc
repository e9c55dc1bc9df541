// A small CA with OpenSSL: Create makes root and issuer, Issue signs certificates with the issuer's
// key. Each certificate file has the intermediate behind it, so that peers need the root alone.

#include "indexer/security/pki.h"

#include <errno.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "indexer/security/identity.h"
#include "indexer/security/secret_file.h"
#include "indexer/security/x509_text.h"

namespace kvatlas {
namespace {

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;

constexpr char kTrustDomainField[] = "kvatlas trial CA of ";

absl::Status Broken(const char* what) {
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL could not ", what));
}

std::string PemOf(EVP_PKEY* key) {
  const BioPtr bio(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return TextOf(bio.get());
}

KeyPtr NewKey() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

// `value` is in the syntax of OpenSSL's configuration files.
bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()), X509_EXTENSION_free);
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// The contents of a certificate to be made.
struct Form {
  std::string common_name;
  int64_t valid_from_s = -300;
  int64_t valid_for_s = 0;
  bool ca = false;
  std::string alternative_names = {};  // OpenSSL's text
};

// Makes a certificate of `key` and signs it with `issuer_key`. Without an issuer it is self-signed.
// Null: OpenSSL failed. The serial number is random, of 127 bits at most and positive, as X.509
// wants it.
X509Ptr Sign(const Form& form, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key) {
  X509Ptr certificate(X509_new(), X509_free);
  X509* const it = certificate.get();
  X509_set_version(it, X509_VERSION_3);
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof(serial)) != 1) return {nullptr, X509_free};
  serial[0] = static_cast<unsigned char>((serial[0] & 0x3f) | 0x40);
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      BN_bin2bn(serial, sizeof(serial), nullptr), BN_free);
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(it));
  X509_gmtime_adj(X509_getm_notBefore(it), form.valid_from_s);
  X509_gmtime_adj(X509_getm_notAfter(it), form.valid_from_s + form.valid_for_s);
  X509_NAME* const subject = X509_get_subject_name(it);
  // At most 64 characters, which names of ours may exceed.
  const std::string common_name = form.common_name.substr(0, 64);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.data()),
                             static_cast<int>(common_name.size()), -1, 0);
  X509_set_issuer_name(it, issuer == nullptr ? subject : X509_get_subject_name(issuer));
  X509_set_pubkey(it, key);
  X509* const by = issuer == nullptr ? it : issuer;
  bool ok = AddExtension(it, by, NID_basic_constraints,
                         form.ca ? "critical,CA:TRUE" : "critical,CA:FALSE") &&
            AddExtension(it, by, NID_key_usage,
                         form.ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
            AddExtension(it, by, NID_subject_key_identifier, "hash") &&
            AddExtension(it, by, NID_authority_key_identifier, "keyid");
  if (!form.ca) ok = ok && AddExtension(it, by, NID_ext_key_usage, "serverAuth,clientAuth");
  if (!form.alternative_names.empty()) {
    ok = ok && AddExtension(it, by, NID_subject_alt_name, form.alternative_names);
  }
  ok = ok && X509_sign(it, issuer_key == nullptr ? key : issuer_key, EVP_sha256()) > 0;
  ERR_clear_error();
  return ok ? std::move(certificate) : X509Ptr(nullptr, X509_free);
}

// In OpenSSL's syntax, "URI:…,DNS:…,IP:…". A comma would end a name and begin another one, so it is
// refused.
absl::StatusOr<std::string> AlternativeNames(const PkiIssue& issue,
                                             const std::string& trust_domain) {
  std::vector<std::string> names;
  if (!issue.identity.empty()) {
    const absl::StatusOr<Identity> identity = ParseIdentity(issue.identity);
    if (!identity.ok()) return identity.status();
    names.push_back(absl::StrCat("URI:spiffe://", trust_domain, "/kvatlas/", issue.identity));
  }
  for (const std::string& dns : issue.dns) names.push_back("DNS:" + dns);
  for (const std::string& ip : issue.ips) names.push_back("IP:" + ip);
  std::string text;
  for (const std::string& name : names) {
    if (name.find(',') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\": a name has no comma"));
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", name);
  }
  return text;
}

// Lets every role do its work for the empty tenant, with engines on loopback and in private
// networks.
std::string ExamplePolicy(const std::string& trust_domain) {
  constexpr char kHosts[] =
      R"(["127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "localhost"])";
  return absl::StrCat(
      "{\n  \"version\": 1,\n  \"trust_domain\": \"", trust_domain, "\",\n  \"rules\": [\n",
      "    {\"identity\": \"worker/*/*\", \"allow\": [\"publish\"], \"url_hosts\": ", kHosts,
      "},\n",
      "    {\"identity\": \"leaf/*/*\", \"allow\": [\"report\", \"snapshot\", \"query\"], "
      "\"url_hosts\": ",
      kHosts, "},\n",
      "    {\"identity\": \"node/*\", \"allow\": [\"report\", \"query\"], \"url_hosts\": ", kHosts,
      "},\n", "    {\"identity\": \"frontend/*\", \"allow\": [\"query\", \"status\"]},\n",
      "    {\"identity\": \"gateway/*\", \"allow\": [\"route\", \"feedback\"]},\n",
      "    {\"identity\": \"operator/*\", \"allow\": [\"*\"], \"tenants\": [\"*\"], "
      "\"url_hosts\": ",
      kHosts, "},\n", "    {\"identity\": \"viewer/*\", \"allow\": [\"status\", \"metrics\"]}\n",
      "  ]\n}\n");
}

}  // namespace

absl::StatusOr<SelfSigned> MakeSelfSigned(int64_t valid_for_s) {
  const KeyPtr key = NewKey();
  if (key == nullptr) return Broken("make a key");
  const X509Ptr certificate = Sign(
      {.common_name = "kvatlas", .valid_for_s = valid_for_s, .alternative_names = "DNS:localhost"},
      key.get(), nullptr, nullptr);
  if (certificate == nullptr) return Broken("make a self-signed certificate");
  return SelfSigned{.certificate = PemOf(certificate.get()), .key = PemOf(key.get())};
}

absl::Status CheckKeyPair(const std::string& certificate_path, const std::string& key_path) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()),
                                                                  SSL_CTX_free);
  absl::Status bad;
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_path.c_str()) != 1) {
    bad = absl::InvalidArgumentError(
        absl::StrCat(certificate_path, ": expected a readable PEM file with a certificate"));
  } else if (SSL_CTX_use_PrivateKey_file(context.get(), key_path.c_str(), SSL_FILETYPE_PEM) != 1) {
    // OpenSSL compares it with the certificate's here.
    bad = absl::InvalidArgumentError(absl::StrCat(
        key_path, ": expected a readable PEM file with the key of ", certificate_path));
  }
  ERR_clear_error();
  return bad;
}

absl::Status Pki::WriteExamplePolicy() const {
  return WriteFileByRename(policy_path(), ExamplePolicy(trust_domain_), 0644);
}

// root.pem is written last and is what a second Create looks for: a folder that was left half made
// can be made again.
absl::StatusOr<Pki> Pki::Create(std::string directory, std::string trust_domain,
                                int64_t valid_for_s) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(absl::StrCat("cannot make ", directory, ": ", strerror(errno)));
  }
  if (access((directory + "/root.pem").c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(directory, " holds a CA already: use it, or another folder"));
  }
  const KeyPtr root_key = NewKey();
  const KeyPtr issuer_key = NewKey();
  if (root_key == nullptr || issuer_key == nullptr) return Broken("make a key");
  const std::string name = kTrustDomainField + trust_domain;
  const X509Ptr root = Sign({.common_name = name, .valid_for_s = valid_for_s, .ca = true},
                            root_key.get(), nullptr, nullptr);
  if (root == nullptr) return Broken("make the root certificate");
  const X509Ptr issuer =
      Sign({.common_name = "issuer, " + name, .valid_for_s = valid_for_s, .ca = true},
           issuer_key.get(), root.get(), root_key.get());
  if (issuer == nullptr) return Broken("make the issuing certificate");
  const std::string at = directory + "/";
  for (const auto& [file, text, mode] :
       {std::tuple<std::string, std::string, mode_t>{"trust_domain", trust_domain, 0644},
        {"root.key", PemOf(root_key.get()), 0600},
        {"issuer.key", PemOf(issuer_key.get()), 0600},
        {"issuer.pem", PemOf(issuer.get()), 0644},
        {"ca.pem", PemOf(root.get()), 0644},
        {"root.pem", PemOf(root.get()), 0644}}) {
    if (absl::Status bad = WriteFileByRename(at + file, text, mode); !bad.ok()) return bad;
  }
  return Pki(std::move(directory), std::move(trust_domain));
}

absl::StatusOr<Pki> Pki::Open(std::string directory) {
  absl::StatusOr<std::string> trust_domain =
      ReadFileUpTo(directory + "/trust_domain", kSecretBytesMax);
  if (!trust_domain.ok()) {
    return absl::NotFoundError(absl::StrCat(
        directory, " holds no CA of kvatlas pki init: ", trust_domain.status().message()));
  }
  return Pki(std::move(directory), *std::move(trust_domain));
}

// The key is written before the certificate. A watcher that sees only the new key finds that the
// two do not fit, and keeps the old pair until both are there.
absl::StatusOr<TlsPaths> Pki::Issue(const PkiIssue& issue) const {
  const absl::StatusOr<std::string> names = AlternativeNames(issue, trust_domain_);
  if (!names.ok()) return names.status();
  const absl::StatusOr<std::string> issuer_pem =
      ReadFileUpTo(directory_ + "/issuer.pem", kSecretBytesMax);
  if (!issuer_pem.ok()) return issuer_pem.status();
  const absl::StatusOr<std::string> issuer_key_pem =
      ReadFileUpTo(directory_ + "/issuer.key", kSecretBytesMax);
  if (!issuer_key_pem.ok()) return issuer_key_pem.status();
  const BioPtr issuer_bio(BIO_new_mem_buf(issuer_pem->data(), -1), BIO_free);
  const X509Ptr issuer(PEM_read_bio_X509(issuer_bio.get(), nullptr, nullptr, nullptr), X509_free);
  const BioPtr key_bio(BIO_new_mem_buf(issuer_key_pem->data(), -1), BIO_free);
  const KeyPtr issuer_key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr),
                          EVP_PKEY_free);
  const KeyPtr key = NewKey();
  if (issuer == nullptr || issuer_key == nullptr || key == nullptr) {
    return Broken("read the issuer's files");
  }
  const std::string common_name = !issue.common_name.empty() ? issue.common_name
                                  : issue.identity.empty()   ? "kvatlas"
                                                             : issue.identity;
  const X509Ptr certificate = Sign({.common_name = common_name,
                                    .valid_from_s = issue.valid_from_s,
                                    .valid_for_s = issue.valid_for_s,
                                    .ca = false,
                                    .alternative_names = *names},
                                   key.get(), issuer.get(), issuer_key.get());
  if (certificate == nullptr) return Broken("issue the certificate: are its names well formed?");
  std::string name = issue.name.empty() ? issue.identity : issue.name;
  if (name.empty()) name = common_name;
  std::replace(name.begin(), name.end(), '/', '-');
  const TlsPaths paths = {.certificate = directory_ + "/" + name + ".pem",
                          .key = directory_ + "/" + name + ".key",
                          .ca = ca_path()};
  if (absl::Status bad = WriteFileByRename(paths.key, PemOf(key.get()), 0600); !bad.ok())
    return bad;
  if (absl::Status bad = WriteFileByRename(paths.certificate,
                                           PemOf(certificate.get()) + PemOf(issuer.get()), 0644);
      !bad.ok()) {
    return bad;
  }
  return paths;
}

}  // namespace kvatlas
