// Load reads the files into fresh OpenSSL contexts, and nothing is replaced unless all of it is
// good. Publish copies them into files in memory for gRPC, which reads files by itself and would
// take a half-written pair.

#include "indexer/security/tls_files.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/security/secret_file.h"
#include "indexer/security/x509_text.h"

namespace kvatlas {
namespace {

// OpenSSL's text for its last error; its queue of errors is empty afterwards.
std::string LastError() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  std::string text = reason == nullptr ? "it cannot be read" : reason;
  ERR_clear_error();
  return text;
}

absl::Status Bad(std::string_view what, const std::string& path, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(what.data(), what.size()), " ",
                                                 path, ": ",
                                                 absl::string_view(reason.data(), reason.size())));
}

// Inode, size and time of change: a file that was replaced or written has another stamp.
absl::StatusOr<std::string> StampOf(std::string_view what, const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return Bad(what, path, strerror(errno));
  return absl::StrCat(status.st_dev, ":", status.st_ino, ":", status.st_size, ":",
                      status.st_mtim.tv_sec, ":", status.st_mtim.tv_nsec, ";");
}

// The stamps of all files that are given, joined.
absl::StatusOr<std::string> StampsOf(const TlsPaths& paths) {
  std::string stamps;
  for (const auto& [what, path] :
       {std::pair<std::string_view, const std::string&>{"certificate", paths.certificate},
        {"key", paths.key},
        {"CA file", paths.ca}}) {
    if (path.empty()) continue;
    absl::StatusOr<std::string> stamp = StampOf(what, path);
    if (!stamp.ok()) return stamp.status();
    stamps += *stamp;
  }
  return stamps;
}

// An expired certificate would be refused by every peer; it is refused here, where the reason is
// plain.
absl::Status CheckValidNow(const std::string& path, SSL_CTX* context, int64_t* not_after) {
  const X509* const certificate = SSL_CTX_get0_certificate(context);
  if (certificate == nullptr) return Bad("certificate", path, "it holds no certificate");
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return Bad("certificate", path, "it has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return Bad("certificate", path, "it is not valid yet: compare the clocks");
  }
  *not_after = UnixSeconds(X509_get0_notAfter(certificate));
  return absl::OkStatus();
}

// Certificate with intermediates, then its key; both must belong together.
absl::Status SetIdentity(const TlsPaths& paths, SSL_CTX* context, int64_t* not_after) {
  if (SSL_CTX_use_certificate_chain_file(context, paths.certificate.c_str()) != 1) {
    return Bad("certificate", paths.certificate,
               absl::StrCat("expected PEM with the certificate first: ", LastError()));
  }
  if (SSL_CTX_use_PrivateKey_file(context, paths.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Bad("key", paths.key,
               absl::StrCat("expected the PEM key of ", paths.certificate, ": ", LastError()));
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    return Bad("key", paths.key, absl::StrCat("it is not the key of ", paths.certificate));
  }
  return CheckValidNow(paths.certificate, context, not_after);
}

// A context without an identity. Peers' certificates are checked where they are sent
// (SSL_VERIFY_PEER); a server does not require one.
absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const SSL_METHOD* method,
                                                     const TlsPaths& paths) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(method), SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(absl::StrCat("no TLS context: ", LastError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // No tickets and no session cache: a resumed session skips the check of the peer's certificate,
  // and the CAs may have changed since.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                         SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  if (!paths.ca.empty() &&
      SSL_CTX_load_verify_locations(context.get(), paths.ca.c_str(), nullptr) != 1) {
    return Bad("CA file", paths.ca, absl::StrCat("expected PEM certificates: ", LastError()));
  }
  if (paths.ca.empty()) SSL_CTX_set_default_verify_paths(context.get());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

absl::StatusOr<std::string> ReadText(std::string_view what, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  return file.good() || file.eof() ? absl::StatusOr<std::string>(std::move(text))
                                   : Bad(what, path, "it cannot be read");
}

// Replaces the file in memory behind `*descriptor` by a new one with this text. dup3 does so in one
// step: an opener of /proc/self/fd/N sees the old text or the new one, never a part.
void PutInto(int* descriptor, std::string_view text) {
  const int fresh = memfd_create("kvatlas-tls", MFD_CLOEXEC);
  bool whole = fresh >= 0;
  while (whole && !text.empty()) {
    const ssize_t written = write(fresh, text.data(), text.size());
    whole = written > 0;
    if (whole) text.remove_prefix(static_cast<size_t>(written));
  }
  if (!whole) {
    if (fresh >= 0) close(fresh);
    return;  // the old one stays
  }
  if (*descriptor < 0) {
    *descriptor = fresh;
    return;
  }
  dup3(fresh, *descriptor, O_CLOEXEC);
  close(fresh);
}

// A path by which this process, and nothing else, opens the file in memory.
std::string PathOf(int descriptor) {
  return descriptor < 0 ? "" : absl::StrCat("/proc/self/fd/", descriptor);
}

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;

std::vector<X509Ptr> ReadChain(std::string_view pem) {
  std::vector<X509Ptr> chain;
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  while (X509* const one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    chain.emplace_back(one, X509_free);
  }
  ERR_clear_error();  // the end of the text
  return chain;
}

}  // namespace

// REQUIRES of the paths: certificate and key together, and a CA file always.
absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Read(TlsPaths paths) {
  if (paths.certificate.empty() != paths.key.empty()) {
    return absl::InvalidArgumentError(
        "a certificate needs its key and a key its certificate (--tls_cert, --tls_key)");
  }
  if (paths.ca.empty()) {
    return absl::InvalidArgumentError("no CA file to check peers' certificates against (--tls_ca)");
  }
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(paths)));
  absl::StatusOr<Loaded> loaded = files->Load();
  if (!loaded.ok()) return loaded.status();
  MutexLock lock(&files->mutex_);
  files->loaded_ = *std::move(loaded);
  return files;
}

// Reads all files between two looks at their stamps: if one changed in between, the result could
// mix old and new, and is dropped. The files are read twice, by OpenSSL and as text for gRPC, which
// the stamps cover too.
absl::StatusOr<TlsFiles::Loaded> TlsFiles::Load() const {
  Loaded loaded;
  absl::StatusOr<std::string> before = StampsOf(paths_);
  if (!before.ok()) return before.status();
  absl::StatusOr<std::shared_ptr<SSL_CTX>> client = MakeContext(TLS_client_method(), paths_);
  if (!client.ok()) return client.status();
  loaded.client = *std::move(client);
  if (!paths_.certificate.empty()) {
    if (absl::Status bad = CheckSecretMode(paths_.key); !bad.ok())
      return absl::InvalidArgumentError(absl::StrCat("key ", bad.message()));
    absl::StatusOr<std::shared_ptr<SSL_CTX>> server = MakeContext(TLS_server_method(), paths_);
    if (!server.ok()) return server.status();
    loaded.server = *std::move(server);
    for (SSL_CTX* const context : {loaded.server.get(), loaded.client.get()}) {
      if (absl::Status bad = SetIdentity(paths_, context, &loaded.not_after_unix_s); !bad.ok()) {
        return bad;
      }
    }
    if (STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(paths_.ca.c_str())) {
      SSL_CTX_set_client_CA_list(loaded.server.get(), names);
    }
    ERR_clear_error();
  }
  absl::StatusOr<std::string> ca = ReadText("CA file", paths_.ca);
  if (!ca.ok()) return ca.status();
  loaded.ca_pem = *std::move(ca);
  if (!paths_.certificate.empty()) {
    absl::StatusOr<std::string> certificate = ReadText("certificate", paths_.certificate);
    absl::StatusOr<std::string> key = ReadText("key", paths_.key);
    if (!certificate.ok()) return certificate.status();
    if (!key.ok()) return key.status();
    loaded.identity_pem = absl::StrCat(*certificate, "\n", *key);
  }
  absl::StatusOr<std::string> after = StampsOf(paths_);
  if (!after.ok()) return after.status();
  if (*after != *before) return absl::UnavailableError("the TLS files change while they are read");
  loaded.stamp = *std::move(after);
  return loaded;
}

// Loads outside the lock; one thread calls it for a process, and a second caller would only do the
// work twice.
absl::Status TlsFiles::Look(bool* changed) {
  *changed = false;
  absl::StatusOr<std::string> stamp = StampsOf(paths_);
  if (!stamp.ok()) return stamp.status();
  {
    MutexLock lock(&mutex_);
    if (*stamp == loaded_.stamp) return absl::OkStatus();
  }
  absl::StatusOr<Loaded> loaded = Load();
  if (!loaded.ok()) return loaded.status();
  MutexLock lock(&mutex_);
  loaded_ = *std::move(loaded);
  if (published_) Publish();
  *changed = true;
  return absl::OkStatus();
}

TlsPaths TlsFiles::AcceptedPaths() {
  MutexLock lock(&mutex_);
  published_ = true;
  return Publish();
}

// Files in memory are kept by the original paths, for the whole process, and never closed: gRPC may
// read them after this object is gone. Certificate and key are one file, so that gRPC cannot read
// them of two versions.
TlsPaths TlsFiles::Publish() {
  using Key = std::tuple<std::string, std::string, std::string>;
  struct InMemory {
    int identity = -1;
    int ca = -1;
  };
  static auto* const mutex = new Mutex;
  static auto* const all = new std::map<Key, InMemory>;
  MutexLock lock(mutex);
  InMemory& files = (*all)[{paths_.certificate, paths_.key, paths_.ca}];
  PutInto(&files.ca, loaded_.ca_pem);
  if (!loaded_.identity_pem.empty()) PutInto(&files.identity, loaded_.identity_pem);
  const std::string ca = PathOf(files.ca), identity = PathOf(files.identity);
  const bool readable = access(ca.c_str(), R_OK) == 0;
  const bool whole = loaded_.identity_pem.empty() || !identity.empty();
  if (!readable || !whole) return paths_;  // a system without such files
  return {.certificate = identity, .key = identity, .ca = ca};
}

std::shared_ptr<ssl_ctx_st> TlsFiles::server() const {
  MutexLock lock(&mutex_);
  return loaded_.server;
}

std::shared_ptr<ssl_ctx_st> TlsFiles::client() const {
  MutexLock lock(&mutex_);
  return loaded_.client;
}

int64_t TlsFiles::not_after_unix_s() const {
  MutexLock lock(&mutex_);
  return loaded_.not_after_unix_s;
}

// Made by a client whose output is taken from a memory BIO; nothing is sent here.
std::string TlsClientHello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> client(SSL_new(context.get()), SSL_free);
  BIO* const from_server = BIO_new(BIO_s_mem());
  BIO* const to_server = BIO_new(BIO_s_mem());
  SSL_set_bio(client.get(), from_server, to_server);  // which owns them
  SSL_connect(client.get());                          // wants an answer that never comes
  ERR_clear_error();
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(to_server, &bytes);
  return std::string(bytes, static_cast<size_t>(size));
}

// Verifies a chain that gRPC or OpenSSL accepted in a handshake some time ago: CAs may have changed
// since, or the certificate expired.
absl::Status TlsFiles::Trusts(std::string_view chain_pem) const {
  const std::vector<X509Ptr> chain = ReadChain(chain_pem);
  if (chain.empty()) return absl::UnauthenticatedError("no certificate");
  const std::shared_ptr<SSL_CTX> context = client();
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(X509_STORE_CTX_new(),
                                                                              X509_STORE_CTX_free);
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> others(
      sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(others.get(), chain[i].get());
  if (X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context.get()), chain[0].get(),
                          others.get()) != 1) {
    return absl::InternalError(LastError());
  }
  X509_STORE_CTX_set_purpose(check.get(), X509_PURPOSE_SSL_CLIENT);
  if (X509_verify_cert(check.get()) == 1) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(check.get());
  ERR_clear_error();
  return absl::UnauthenticatedError(
      absl::StrCat("certificate: ", X509_verify_cert_error_string(error)));
}

}  // namespace kvatlas
