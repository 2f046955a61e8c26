package gateway

import (
	"fmt"
	"html"
	"net/http"
	"strings"

	"tendril.dev/lib/nostr"
)

// gitRequests end the paths of git's requests.
var gitRequests = []string{"/info/refs", "/git-upload-pack", "/git-receive-pack"}

// answerAddress answers what is asked below the address of a repository, or below the same without
// ".git", that no worker has to be asked for. It reports whether it did.
func answerAddress(w http.ResponseWriter, r *http.Request, base string) bool {
	path := r.URL.EscapedPath()
	if strings.Contains(path+"/", ".git/info/lfs/") {
		w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintln(w, `{"message": "this server has no Git LFS: `+
			`name another LFS server in .lfsconfig, or push the files themselves"}`)
		return true
	}
	if r.Method == http.MethodGet && r.URL.Query().Get("go-get") == "1" {
		return answerGo(w, path, base)
	}
	for _, request := range gitRequests {
		short, is := strings.CutSuffix(path, request)
		if !is || strings.HasSuffix(strings.TrimRight(short, "/"), ".git") || !isRepository(short+".git") {
			continue
		}
		// From where the request is, so that it does not matter below which path we are served. Git
		// goes on at the address to which its first request leads.
		name := short[strings.LastIndex(short, "/")+1:]
		to := strings.Repeat("../", strings.Count(request, "/")) + name + ".git" + request
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		w.Header().Set("Location", to)
		status := http.StatusFound
		if r.Method == http.MethodPost {
			status = http.StatusTemporaryRedirect
		}
		w.WriteHeader(status)
		return true
	}
	return false
}

func isRepository(path string) bool {
	at, err := nostr.ParseRepositoryPath(path)
	return err == nil && at.Service == "" && !at.PRs
}

// answerGo tells the go command which repository has the module of a path: the one that its first
// two segments name, with or without ".git".
func answerGo(w http.ResponseWriter, path, base string) bool {
	segments := strings.SplitN(strings.Trim(path, "/"), "/", 3)
	if len(segments) < 2 {
		return false
	}
	module := "/" + segments[0] + "/" + segments[1]
	address := strings.TrimSuffix(module, ".git") + ".git"
	if !isRepository(address) {
		return false
	}
	_, host, _ := strings.Cut(base, "://")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, "<!doctype html><title>go get</title><meta name=\"go-import\" content=\"%s git %s\">\n",
		html.EscapeString(host+module), html.EscapeString(base+address))
	return true
}
