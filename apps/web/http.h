#pragma once
/// A small HTTP/1.1 server: routes, limits, and answers that stream. Knows nothing of attention.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace heed::web {

struct Request {
    std::string method;
    std::string path;                          ///< without the query, percent signs decoded
    std::map<std::string, std::string> query;  ///< decoded
    std::string authorization;                 ///< the header of that name
    std::string body;
};

struct Response {
    int status = 200;
    std::string type = "application/json";
    std::string body = {};
    std::map<std::string, std::string> headers = {};
};

/// A refusal that a handler throws: becomes {"error": {"message": ..., "type": ...}}.
struct HttpError {
    int status = 400;
    std::string message;
    std::string type = "invalid_request_error";
};

/// The way out of a handler that streams. Used from the handler's thread; `write` waits while the client reads slowly
/// and says false when the client has gone, after which nothing more is worth computing.
class Stream {
public:
    virtual ~Stream() = default;
    virtual bool write(std::string_view text) = 0;
    /// True from the moment on when the client has gone: also for heed::Interruption.
    virtual const std::atomic<bool>& gone() const = 0;
    bool closed() const { return gone().load(); }
};

using Handler = std::function<Response(const Request&)>;
/// Checks the request (throwing HttpError), and returns what then writes the stream.
using StreamBody = std::function<void(Stream&)>;

/// Computes a whole answer on a thread of its own, for what takes long; `client` says when nobody waits any more.
using LaterBody = std::function<Response(const Stream& client)>;

/// A whole answer, a stream of server-sent events, or a whole answer later.
struct Answer {
    Response whole = {};
    StreamBody stream = {};
    LaterBody later = {};
};
using AnswerHandler = std::function<Answer(const Request&)>;

struct ServerLimits {
    std::size_t header_bytes = 16 * 1024;
    std::size_t body_bytes = std::size_t{4} << 20;
    int connections = 2048;                  ///< more wait in the system's queue
    int workers = 4;                         ///< handlers that run at once
    int waiting = 64;                        ///< handlers that wait for a worker; more are answered 429
    int streams = 64;                        ///< answers that stream at once, each with a thread; more are answered 429
    std::chrono::seconds read_timeout{20};   ///< for a request to arrive in full, and between two of them
    std::chrono::seconds write_timeout{20};  ///< for the client to take the next part of an answer
};

struct ServerOptions {
    std::string host = "127.0.0.1";  ///< an address, not a name
    std::uint16_t port = 0;          ///< 0: any that is free
    /// Bearer token that every request must carry (header, or ?token= once, for the page). Empty: none, and then only
    /// addresses of this machine are listened on.
    std::string token = {};
    ServerLimits limits = {};
};

class Server {
public:
    /// Binds at once; throws std::runtime_error where that fails.
    explicit Server(const ServerOptions& options);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    void add(const std::string& method, const std::string& path, Handler handler);
    void add_streaming(const std::string& method, const std::string& path, AnswerHandler handler);

    /// "http://127.0.0.1:8080"
    std::string address() const;
    /// Serves until stop(), which may be called from a signal handler's thread or any other.
    void run();
    /// Takes no more connections, lets answers in progress end (for at most `grace`), then run() returns.
    void stop(std::chrono::milliseconds grace = std::chrono::milliseconds(3000));

    struct Counts {
        std::uint64_t requests = 0, refused = 0, failed = 0;
        std::int64_t connections = 0, streams = 0;
    };
    Counts counts() const;

private:
    struct Implementation;
    std::unique_ptr<Implementation> implementation_;
};

}  // namespace heed::web
