package githttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"tendril.dev/services/purgatory/repository"
)

// archive answers with the files of a tag in one .tar.gz. The same commit gives the same bytes, so
// a client that has them is told so.
func (x *exchange) archive(tag string) {
	commit, err := "", error(nil)
	if !x.prs {
		commit, err = x.repo.Commit(x.r.Context(), x.client, tag)
	}
	switch {
	case err != nil:
		x.fail(err)
		return
	case commit == "":
		http.Error(x.w, "not found: there is no such tag", http.StatusNotFound)
		return
	}
	folder := archiveName(x.ref.Identifier) + "-" + archiveName(tag)
	etag := `"` + commit + `"`
	h := x.w.Header()
	h.Set("ETag", etag)
	h.Set("Cache-Control", "no-cache") // a tag may be moved
	h.Set("Content-Disposition", `attachment; filename="`+folder+`.tar.gz"`)
	if strings.Contains(x.r.Header.Get("If-None-Match"), etag) {
		x.w.WriteHeader(http.StatusNotModified)
		return
	}
	x.contentType = "application/gzip"
	if x.r.Method == http.MethodHead {
		x.end(x.begin(), "archive")
		return
	}
	x.end(x.sendArchive(commit, folder), "archive")
}

func (x *exchange) sendArchive(commit, folder string) error {
	ctx, cancel := context.WithTimeout(x.r.Context(), fetchTime)
	defer cancel()
	for {
		archive, err := x.repo.Archive(ctx, x.client, commit, folder)
		if errors.Is(err, repository.ErrArchiveTooLarge) {
			return &failure{resultRefused, repository.ErrArchiveTooLarge.Error(), http.StatusRequestEntityTooLarge, nil}
		}
		if err != nil {
			return err
		}
		read, err := archive.Read(func(content io.Reader) error {
			x.w.Header().Set("Content-Length", strconv.FormatInt(archive.Size(), 10))
			_, err := io.CopyBuffer(x, content, make([]byte, chunk))
			return err
		})
		if read {
			return err
		}
	}
}

// archiveName is a text as a part of the name of a file and of a folder: what is no plain character
// becomes a hyphen.
func archiveName(text string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, text[:min(len(text), 100)]), ".-")
}
