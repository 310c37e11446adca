#include "http.h"

#include <utility>  // Boost.Asio 1.74 forgets it

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <heed/interrupt.h>

#include "http_text.h"
#include "json.h"

namespace heed::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

/// Set on every answer: nothing of another origin is loaded, framed or guessed at.
constexpr std::array<std::pair<const char*, const char*>, 6> safety_headers = {{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
}};

/// As OpenAI's clients read it: "param" is the field that a message begins with, where it names one.
std::string error_json(const HttpError& error) {
    const std::size_t colon = error.message.find(": ");
    const std::string field = error.message.substr(0, colon == std::string::npos ? 0 : colon);
    const bool named = !field.empty() && field.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.") == std::string::npos;
    return Json{{"error",
                 {{"message", error.message},
                  {"type", error.type},
                  {"param", error.status == 400 && named ? Json(field) : Json(nullptr)},
                  {"code", error.status}}}}
        .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Response response_of(const HttpError& error) {
    Response response{.status = error.status, .body = error_json(error)};
    if (error.status == 429) { response.headers["Retry-After"] = "1"; }
    if (error.status == 401) { response.headers["WWW-Authenticate"] = "Bearer"; }
    return response;
}

std::string_view to_view(boost::beast::string_view text) { return {text.data(), text.size()}; }

/// Between the thread that computes an answer and the one that sends it.
class Pipe final : public Stream {
public:
    Pipe(asio::any_io_executor executor, std::size_t limit) : ready_(executor), limit_(limit) {
        ready_.expires_at(asio::steady_timer::time_point::max());
    }

    bool write(std::string_view text) override {
        std::unique_lock lock(mutex_);
        taken_.wait(lock, [&] { return closed_.load() || waiting_.size() < limit_; });
        if (closed_) { return false; }
        waiting_.append(text);
        wake();
        return true;
    }
    const std::atomic<bool>& gone() const override { return closed_; }

    /// The computing side has no more to say.
    void finish() {
        const std::lock_guard lock(mutex_);
        finished_ = true;
        wake();
    }
    /// The client has gone.
    void close() {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        taken_.notify_all();
        wake();
    }
    /// What is there to send; nothing when it has all been sent, or nobody reads.
    asio::awaitable<std::optional<std::string>> take() {
        for (;;) {
            {
                const std::lock_guard lock(mutex_);
                if (closed_) { co_return std::nullopt; }
                if (!waiting_.empty()) {
                    std::string text = std::exchange(waiting_, {});
                    taken_.notify_all();
                    co_return text;
                }
                if (finished_) { co_return std::nullopt; }
                ready_.expires_at(asio::steady_timer::time_point::max());
            }
            error_code ignored;
            co_await ready_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        }
    }

private:
    // The timer belongs to the thread of the sockets: it is poked there, never from the computing thread.
    void wake() {
        asio::post(ready_.get_executor(), [this, alive = keep_alive_.lock()] {
            if (alive) { ready_.cancel(); }
        });
    }

public:
    std::weak_ptr<Pipe> keep_alive_;

private:
    mutable std::mutex mutex_;
    std::condition_variable taken_;
    std::string waiting_;
    std::atomic<bool> closed_{false};
    bool finished_ = false;
    asio::steady_timer ready_;
    std::size_t limit_;
};

}  // namespace

struct Server::Implementation {
    explicit Implementation(const ServerOptions& settings)
        : options(settings),
          acceptor(context),
          retry(context),
          work(static_cast<std::size_t>(settings.limits.workers)) {}

    using Route = std::pair<std::string, std::string>;

    ServerOptions options;
    asio::io_context context{1};
    tcp::acceptor acceptor;
    asio::steady_timer retry;
    asio::thread_pool work;
    std::map<Route, AnswerHandler> routes;
    std::uint16_t port = 0;
    std::atomic<bool> stopping{false};
    std::atomic<std::int64_t> connections{0}, queued{0}, streams{0};
    std::atomic<std::uint64_t> requests{0}, refused{0}, failed{0};
    std::vector<std::weak_ptr<Pipe>> pipes;  // used on the thread of the sockets alone

    /// Why a request is turned away before anybody looks at what it asks.
    std::optional<HttpError> guard(const http::request<http::string_body>& message, const Request& request) const {
        if (!host_allowed(to_view(message[http::field::host]), options, port)) {
            return HttpError{403, "Host: expected this server's own address, got " +
                                      std::string(to_view(message[http::field::host]))};
        }
        const std::string_view origin = to_view(message[http::field::origin]);
        if (!origin.empty()) {
            const std::size_t scheme = origin.find("://");
            if (scheme == std::string_view::npos || !host_allowed(origin.substr(scheme + 3), options, port)) {
                return HttpError{403, "Origin: expected this server's own page, got " + std::string(origin)};
            }
        }
        if (!options.token.empty()) {
            constexpr std::string_view bearer = "Bearer ";
            const std::string_view header = request.authorization;
            const auto given = request.query.find("token");
            const bool by_header =
                header.starts_with(bearer) && same_secret(header.substr(bearer.size()), options.token);
            const bool by_query = given != request.query.end() && same_secret(given->second, options.token);
            // The page itself and its files hold no secret; what they ask for does.
            const bool is_page = request.method == "GET" && !request.path.starts_with("/api/") &&
                                 !request.path.starts_with("/v1/") && request.path != "/metrics";
            if (!by_header && !by_query && !is_page) {
                return HttpError{401, "Authorization: expected the bearer token that heed serve printed",
                                 "authentication_error"};
            }
        }
        return std::nullopt;
    }

    Answer answer(const http::request<http::string_body>& message) {
        ++requests;
        Request request{.method = std::string(to_view(message.method_string())),
                        .path = {},
                        .query = {},
                        .authorization = std::string(to_view(message[http::field::authorization])),
                        .body = message.body()};
        const std::string_view target = to_view(message.target());
        const std::size_t mark = target.find('?');
        const auto path = url_decode(target.substr(0, mark));
        try {
            if (!path || !path->starts_with('/') ||
                (mark != std::string_view::npos && !parse_query(target.substr(mark + 1), request.query))) {
                throw HttpError{400, "the address of the request cannot be read"};
            }
            request.path = *path;
            if (const auto refusal = guard(message, request)) { throw *refusal; }
            const auto route = routes.find({request.method == "HEAD" ? "GET" : request.method, request.path});
            if (route == routes.end()) {
                for (const auto& [known, handler] : routes) {
                    if (known.second == request.path) {
                        throw HttpError{405, request.path + ": expected " + known.first + ", got " + request.method};
                    }
                }
                throw HttpError{404, "no such page: " + request.path};
            }
            return route->second(request);
        } catch (...) { return {.whole = refusal_of_current()}; }
    }

    /// What the exception in flight means to a client.
    Response refusal_of_current() {
        try {
            throw;
        } catch (const HttpError& error) {
            ++refused;
            return response_of(error);
        } catch (const heed::Error& error) {
            ++refused;
            return response_of({400, error.what()});
        } catch (const heed::Interrupted&) {  // nobody is there to be told
            return {};
        } catch (const Json::exception& error) {
            ++refused;
            return response_of({400, std::string("the body cannot be read: ") + error.what()});
        } catch (const std::bad_alloc&) {
            ++failed;
            return response_of({507, "not enough memory for this request", "server_error"});
        } catch (const std::exception& error) {
            ++failed;
            return response_of({500, error.what(), "server_error"});
        }
    }

    template <class Message>
    void dress(Message& message, const std::string& type) const {
        message.set(http::field::server, "heed");
        message.set(http::field::content_type, type);
        for (const auto& [name, value] : safety_headers) { message.set(name, value); }
    }

    // What is co_awaited takes named objects: GCC 12 destroys temporaries of such an expression twice (PR 99576).
    asio::awaitable<bool> send(beast::tcp_stream& stream, const http::request<http::string_body>& request,
                               Response response) {
        http::response<http::string_body> message;
        message.version(request.version());
        message.result(static_cast<unsigned>(response.status));
        dress(message, response.type);
        for (const auto& [name, value] : response.headers) { message.set(name, value); }
        message.keep_alive(request.keep_alive() && !stopping);
        const bool head = request.method() == http::verb::head;
        const std::size_t size = response.body.size();
        if (!head) { message.body() = std::move(response.body); }
        message.content_length(size);
        stream.expires_after(options.limits.write_timeout);
        error_code error;
        http::response_serializer<http::string_body> serializer(message);
        if (head) {
            co_await http::async_write_header(stream, serializer, asio::redirect_error(asio::use_awaitable, error));
        } else {
            co_await http::async_write(stream, serializer, asio::redirect_error(asio::use_awaitable, error));
        }
        co_return !error && message.keep_alive();
    }

    /// A client that goes away while its answer is computed says so by closing its side.
    void watch(const std::shared_ptr<beast::tcp_stream>& stream, const std::shared_ptr<Pipe>& pipe) {
        stream->socket().async_wait(tcp::socket::wait_read, [stream, weak = std::weak_ptr(pipe)](error_code error) {
            const auto alive = weak.lock();
            if (!alive || error) { return; }
            char byte = 0;
            error_code state;
            stream->socket().non_blocking(true, state);
            const std::size_t count =
                stream->socket().receive(asio::buffer(&byte, 1), tcp::socket::message_peek, state);
            if ((!state && count == 0) || (state && state != asio::error::would_block)) { alive->close(); }
        });
    }

    asio::awaitable<void> send_stream(std::shared_ptr<beast::tcp_stream> stream,
                                      const http::request<http::string_body>& request, StreamBody body) {
        constexpr std::size_t waiting_bytes = 64 * 1024;
        const auto pipe = std::make_shared<Pipe>(stream->get_executor(), waiting_bytes);
        pipe->keep_alive_ = pipe;
        std::erase_if(pipes, [](const auto& weak) { return weak.expired(); });
        pipes.push_back(pipe);
        std::thread computing([this, pipe, body = std::move(body)]() mutable {
            try {
                body(*pipe);
            } catch (const heed::Interrupted&) {  // nobody is there to be told
            } catch (const HttpError& error) {
                pipe->write("data: " + error_json(error) + "\n\n");
            } catch (const std::exception& error) {
                ++failed;
                pipe->write("data: " + error_json({500, error.what(), "server_error"}) + "\n\n");
            }
            body = nullptr;  // what it holds may belong to who waits for the last stream
            pipe->finish();
            --streams;
        });
        computing.detach();

        http::response<http::empty_body> header(http::status::ok, request.version());
        dress(header, "text/event-stream");
        header.chunked(true);
        header.keep_alive(false);
        http::response_serializer<http::empty_body> serializer(header);
        error_code error;
        stream->expires_after(options.limits.write_timeout);
        co_await http::async_write_header(*stream, serializer, asio::redirect_error(asio::use_awaitable, error));
        stream->expires_never();
        if (!error) { watch(stream, pipe); }
        while (!error) {
            const std::optional<std::string> text = co_await pipe->take();
            if (!text) { break; }
            stream->expires_after(options.limits.write_timeout);
            co_await asio::async_write(*stream, http::make_chunk(asio::buffer(*text)),
                                       asio::redirect_error(asio::use_awaitable, error));
            stream->expires_never();
        }
        if (!error && !pipe->closed()) {
            stream->expires_after(options.limits.write_timeout);
            co_await asio::async_write(*stream, http::make_chunk_last(),
                                       asio::redirect_error(asio::use_awaitable, error));
        }
        pipe->close();
    }

    /// As send_stream, for an answer that is sent whole: the client's leaving is seen while it is computed.
    asio::awaitable<bool> send_later(std::shared_ptr<beast::tcp_stream> stream,
                                     const http::request<http::string_body>& request, LaterBody body) {
        const auto pipe = std::make_shared<Pipe>(stream->get_executor(), std::size_t{1});
        pipe->keep_alive_ = pipe;
        std::erase_if(pipes, [](const auto& weak) { return weak.expired(); });
        pipes.push_back(pipe);
        const auto result = std::make_shared<Response>();
        std::thread computing([this, pipe, result, body = std::move(body)]() mutable {
            try {
                *result = body(*pipe);
            } catch (...) { *result = refusal_of_current(); }
            body = nullptr;
            pipe->finish();
            --streams;
        });
        computing.detach();
        watch(stream, pipe);
        const std::optional<std::string> nothing = co_await pipe->take();
        if (nothing || pipe->closed()) { co_return false; }
        co_return co_await send(*stream, request, std::move(*result));
    }

    asio::awaitable<void> serve(tcp::socket socket) {
        struct Counted {
            std::atomic<std::int64_t>& count;
            ~Counted() { --count; }
        } const counted{connections};
        const auto stream = std::make_shared<beast::tcp_stream>(std::move(socket));
        beast::flat_buffer buffer;
        for (bool more = true; more && !stopping;) {
            http::request_parser<http::string_body> parser;
            parser.header_limit(static_cast<std::uint32_t>(options.limits.header_bytes));
            parser.body_limit(options.limits.body_bytes);
            stream->expires_after(options.limits.read_timeout);
            error_code error;
            co_await http::async_read(*stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
            if (error) {
                co_await refuse(*stream, error);
                break;
            }
            const http::request<http::string_body> request = parser.release();
            if (queued.load() >= options.limits.workers + options.limits.waiting) {
                ++refused;
                Response busy = response_of({429, "the queue of requests is full; try again", "server_busy"});
                more = co_await send(*stream, request, std::move(busy));
                continue;
            }
            stream->expires_never();
            ++queued;
            const auto compute = [this, &request]() -> asio::awaitable<Answer> { co_return answer(request); };
            Answer result = co_await asio::co_spawn(work.get_executor(), compute, asio::use_awaitable);
            --queued;
            if (!result.stream && !result.later) {
                more = co_await send(*stream, request, std::move(result.whole));
                continue;
            }
            if (streams.load() >= options.limits.streams) {
                ++refused;
                Response busy = response_of({429, "too many answers stream already; try again", "server_busy"});
                more = co_await send(*stream, request, std::move(busy));
                continue;
            }
            ++streams;
            if (result.later) {
                more = co_await send_later(stream, request, std::move(result.later));
                continue;
            }
            co_await send_stream(stream, request, std::move(result.stream));
            more = false;
        }
        co_await linger(*stream);
    }

    /// Closes so that the client can read the last answer: what it still sends is read and forgotten for a moment,
    /// because closing on unread bytes makes the system throw the answer away.
    asio::awaitable<void> linger(beast::tcp_stream& stream) {
        error_code error;
        stream.socket().shutdown(tcp::socket::shutdown_send, error);
        std::array<char, 16384> forgotten;
        std::size_t left = 4 * options.limits.body_bytes;
        stream.expires_after(std::chrono::seconds(2));
        while (!error && left > 0) {
            const std::size_t count = co_await stream.async_read_some(asio::buffer(forgotten),
                                                                      asio::redirect_error(asio::use_awaitable, error));
            left -= std::min(left, count);
        }
    }

    /// Says what was wrong with bytes that are no request, where somebody still listens.
    asio::awaitable<void> refuse(beast::tcp_stream& stream, error_code error) {
        int status = 0;
        if (error == http::error::body_limit) {
            status = 413;
        } else if (error == http::error::header_limit) {
            status = 431;
        } else if (error == beast::error::timeout) {
            status = 408;
        } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
                   error != http::error::end_of_stream && error != http::error::partial_message) {
            status = 400;
        }
        if (status == 0) { co_return; }
        ++refused;
        http::request<http::string_body> none;
        none.keep_alive(false);
        Response response = response_of({status, "the request cannot be read: " + error.message()});
        co_await send(stream, none, std::move(response));
    }

    asio::awaitable<void> accept() {
        while (!stopping) {
            if (connections.load() >= options.limits.connections) {
                retry.expires_after(std::chrono::milliseconds(5));
                error_code ignored;
                co_await retry.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
                continue;
            }
            error_code error;
            tcp::socket socket =
                co_await acceptor.async_accept(context, asio::redirect_error(asio::use_awaitable, error));
            if (stopping) { break; }
            if (error) {  // too many open files, mostly: wait until some have closed
                retry.expires_after(std::chrono::milliseconds(20));
                error_code ignored;
                co_await retry.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
                continue;
            }
            error_code ignored;
            socket.set_option(tcp::no_delay(true), ignored);
            ++connections;
            asio::co_spawn(context, serve(std::move(socket)), asio::detached);
        }
    }
};

Server::Server(const ServerOptions& options) : implementation_(std::make_unique<Implementation>(options)) {
    Implementation& self = *implementation_;
    error_code error;
    const asio::ip::address address = asio::ip::make_address(options.host, error);
    if (error) { throw std::runtime_error("host: expected an address such as 127.0.0.1 or ::1, got " + options.host); }
    if (!address.is_loopback() && options.token.empty()) {
        throw std::runtime_error("token: expected one where the server listens beyond this machine, got none");
    }
    const tcp::endpoint endpoint(address, options.port);
    self.acceptor.open(endpoint.protocol(), error);
    if (!error) { self.acceptor.set_option(asio::socket_base::reuse_address(true), error); }
    if (!error) { self.acceptor.bind(endpoint, error); }
    if (!error) { self.acceptor.listen(asio::socket_base::max_listen_connections, error); }
    if (error) {
        throw std::runtime_error("cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " +
                                 error.message());
    }
    self.port = self.acceptor.local_endpoint().port();
}

Server::~Server() {
    Implementation& self = *implementation_;
    for (const auto& weak : self.pipes) {
        if (const auto pipe = weak.lock()) { pipe->close(); }
    }
    self.work.join();
    while (self.streams.load() > 0) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
}

void Server::add(const std::string& method, const std::string& path, Handler handler) {
    add_streaming(method, path,
                  [handler = std::move(handler)](const Request& request) { return Answer{.whole = handler(request)}; });
}

void Server::add_streaming(const std::string& method, const std::string& path, AnswerHandler handler) {
    implementation_->routes[{method, path}] = std::move(handler);
}

std::string Server::address() const {
    const ServerOptions& options = implementation_->options;
    const bool six = options.host.find(':') != std::string::npos;
    return "http://" + (six ? "[" + options.host + "]" : options.host) + ":" + std::to_string(implementation_->port);
}

void Server::run() {
    Implementation& self = *implementation_;
    asio::co_spawn(self.context, self.accept(), asio::detached);
    self.context.run();
}

void Server::stop(std::chrono::milliseconds grace) {
    Implementation& self = *implementation_;
    asio::post(self.context, [&self, grace] {
        if (self.stopping.exchange(true)) { return; }
        error_code ignored;
        self.acceptor.close(ignored);
        const auto end = std::make_shared<asio::steady_timer>(self.context);
        const auto deadline = std::chrono::steady_clock::now() + grace;
        const auto look = std::make_shared<std::function<void()>>();
        *look = [&self, end, deadline, look] {
            const bool idle = self.queued.load() == 0 && self.streams.load() == 0;
            if (idle || std::chrono::steady_clock::now() >= deadline) {
                for (const auto& weak : self.pipes) {
                    if (const auto pipe = weak.lock()) { pipe->close(); }
                }
                self.context.stop();
                return;
            }
            end->expires_after(std::chrono::milliseconds(20));
            end->async_wait([look](error_code) { (*look)(); });
        };
        (*look)();
    });
}

Server::Counts Server::counts() const {
    const Implementation& self = *implementation_;
    return {.requests = self.requests,
            .refused = self.refused,
            .failed = self.failed,
            .connections = self.connections,
            .streams = self.streams};
}

}  // namespace heed::web
