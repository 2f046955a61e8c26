package bench

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"tendril.dev/test/world"
)

// oneForAll is a git server that has one repository under every name. It asks git once for each
// different request and keeps the answers, so that a thousand clones cost it nothing.
type oneForAll struct {
	*httptest.Server
	backend http.Handler

	mu      sync.Mutex
	answers map[string]*httptest.ResponseRecorder
}

// largestWish is the largest request that it takes. Those of a repository with one commit are
// small.
const largestWish = 64 << 10

// newOneForAll serves a copy of a work tree's repository.
func newOneForAll(t testing.TB, work *world.WorkTree) *oneForAll {
	git := world.NewGitServer(t)
	git.Host("all", work)
	g := &oneForAll{backend: git, answers: map[string]*httptest.ResponseRecorder{}}
	g.Server = httptest.NewServer(g)
	t.Cleanup(g.Close)
	return g
}

// ServeHTTP answers a git client.
func (g *oneForAll) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, path, named := strings.Cut(r.URL.Path, ".git/")
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestWish))
	if !named || err != nil {
		http.Error(w, "no such repository", http.StatusNotFound)
		return
	}
	answer := g.answer(r, "/all.git/"+path, body)
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes()) // a client that went away needs no answer
}

func (g *oneForAll) answer(r *http.Request, path string, body []byte) *httptest.ResponseRecorder {
	key := fmt.Sprint(r.Method, path, "?", r.URL.RawQuery, r.Header["Git-Protocol"], r.Header["Content-Encoding"], string(body))
	g.mu.Lock()
	defer g.mu.Unlock()
	if known := g.answers[key]; known != nil {
		return known
	}
	ask := r.Clone(r.Context())
	ask.URL.Path, ask.Body, ask.ContentLength = path, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer := httptest.NewRecorder()
	g.backend.ServeHTTP(answer, ask)
	g.answers[key] = answer
	return answer
}
