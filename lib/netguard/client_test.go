package netguard

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"tendril.dev/test/fixture"
)

// serve runs an HTTP server on loopback; its port is part of the URL.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

func portOf(t *testing.T, server *httptest.Server) string {
	t.Helper()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must(t, err)
	return port
}

const patience = fixture.Patience

// get fetches a page. What takes longer than its time is an error of the test's own, which no cause
// stands for.
func get(t *testing.T, client *http.Client, url string) (*http.Response, string, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(patience, cancel).Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(LimitBody(resp.Body, 1<<20))
	return resp, string(body), err
}

func TestHTTPClientGoesThroughTheGuard(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		http.SetCookie(w, &http.Cookie{Name: "track", Value: "me"})
		fmt.Fprint(w, r.Host, r.UserAgent(), r.Header.Get("Cookie"))
	})
	lookup := map[string]string{"git.example": "127.0.0.1"}
	host := "git.example:" + portOf(t, server)
	if _, _, err := get(t, resolve(New(Options{}), lookup).HTTPClient(), "http://"+host); Classify(err) != CauseRefused || hits.Load() != 0 {
		t.Errorf("error %v, want a refusal; %d requests came through", err, hits.Load())
	}
	// The environment names a proxy (TestMain) and this host is not a local name: a client that
	// heeds it would ask the proxy.
	client := resolve(New(Options{AllowPrivate: true}), lookup).HTTPClient()
	for range 2 {
		if _, body, err := get(t, client, "http://"+host); err != nil || body != host+"Tendril" {
			t.Errorf("got %q, %v", body, err)
		}
	}
	if _, _, err := get(t, client, "file:///etc/hostname"); err == nil || proxied.Load() != 0 {
		t.Errorf("a file: %v; %d requests went to the proxy", err, proxied.Load())
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	var inner atomic.Int64
	hidden := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inner.Add(1) }))
	hidden.Listener.Close()
	var err error
	if hidden.Listener, err = net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	hidden.Start()
	t.Cleanup(hidden.Close)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var n int
		switch _, err := fmt.Sscanf(r.URL.Path, "/hops/%d", &n); {
		case r.URL.Path == "/to":
			http.Redirect(w, r, r.URL.Query().Get("url"), http.StatusFound)
		case err == nil && n > 0:
			http.Redirect(w, r, fmt.Sprintf("/hops/%d", n-1), http.StatusFound)
		default:
			fmt.Fprint(w, "arrived")
		}
	})
	client := guardOf(t, map[string]string{"inner.example": "127.0.0.2", "git.example": "127.0.0.1"}).HTTPClient()
	ports := strings.NewReplacer("PUBLIC", portOf(t, server), "HIDDEN", portOf(t, hidden))
	for _, row := range fixture.Rows(`
		/                                      |
		/hops/5                                |
		/hops/6                                | after 5 redirects
		/to?url=http://git.example:PUBLIC      |
		/to?url=http://127.0.0.2:HIDDEN        | not a public address
		/to?url=http://inner.example:HIDDEN    | not a public address
		/to?url=http://169.254.169.254/latest  | not a public address
		/to?url=file:///etc/passwd             | scheme file
		/to?url=gopher://127.0.0.1:6379/x      | scheme gopher
		/to?url=http://u:p@git.example:PUBLIC  | credentials`) {
		path, reason := row[0], row[1] // without a reason it arrives
		_, body, err := get(t, client, server.URL+ports.Replace(path))
		if arrives := reason == ""; arrives && (err != nil || body != "arrived") ||
			!arrives && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), reason) || Classify(err) != CauseRefused) {
			t.Errorf("%s: %q, %v; want %q", path, body, err, reason)
		}
	}
	if n := inner.Load(); n != 0 {
		t.Errorf("%d requests reached the hidden server", n)
	}
}

// serveTLS runs an HTTPS server; its certificate is for example.com, which the pool vouches for.
func serveTLS(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = quiet
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	return server, pool
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	plain := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "plain") })
	server, pool := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, plain.URL, http.StatusFound)
			return
		}
		fmt.Fprint(w, r.Proto)
	})
	lookup := map[string]string{"example.com": "127.0.0.1", "other.test": "127.0.0.1"}
	guard := guardOf(t, lookup)
	guard.roots = pool
	client := guard.HTTPClient()
	secure := "https://example.com:" + portOf(t, server)

	if resp, body, err := get(t, client, secure); err != nil || body != "HTTP/1.1" || resp.TLS == nil {
		t.Errorf("got %q, %v", body, err)
	}
	if _, _, err := get(t, client, secure+"/down"); Classify(err) != CauseRefused || !strings.Contains(err.Error(), "https to http") {
		t.Errorf("redirect to http: %v", err)
	}
	for url, by := range map[string]*http.Client{
		"https://other.test:" + portOf(t, server): client, // a wrong name
		secure: guardOf(t, lookup).HTTPClient(), // an unknown authority
		"https://example.com:" + portOf(t, plain): client, // no TLS there
	} {
		if _, _, err := get(t, by, url); Classify(err) != CauseTLS {
			t.Errorf("%s: %v is %s", url, err, Classify(err))
		}
	}
}

func TestHTTPClientBoundsHeaders(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Large", strings.Repeat("x", 2*maxHeaderBytes))
	})
	if _, _, err := get(t, guardOf(t, nil).HTTPClient(), server.URL); Classify(err) != CauseProtocol {
		t.Errorf("%v is %s", err, Classify(err))
	}
}

func TestLimitBody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size, limit int
		tooLarge    bool
	}{{0, 0, false}, {1, 0, true}, {10, 10, false}, {11, 10, true}, {100_000, 99_999, true}} {
		for _, read := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.DataErrReader} {
			got, err := io.ReadAll(LimitBody(read(strings.NewReader(strings.Repeat("x", c.size))), int64(c.limit)))
			if errors.Is(err, ErrTooLarge) != c.tooLarge || (err != nil) != c.tooLarge || len(got) != min(c.size, c.limit) {
				t.Errorf("%d of %d bytes gave %d bytes, %v", c.size, c.limit, len(got), err)
			}
		}
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(LimitBody(iotest.ErrReader(broken), 10)); err != broken {
		t.Errorf("error %v, want that of the reader", err)
	}
}
