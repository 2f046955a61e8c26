package githttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"tendril.dev/services/purgatory/repository"
)

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"

	// maxNegotiation bounds the wants and haves of one request of a fetch: of a repository with
	// 100,000 references they are 5 MB.
	maxNegotiation = 16 << 20
	// fetchTime bounds how long git may work on one answer, its wait for a client included, for
	// whose answer there is no room.
	fetchTime = time.Hour
)

// serveHead answers with the HEAD file, which some clients read to know that there is a repository.
func (x *exchange) serveHead() {
	branch, err := x.shown.Head()
	if err != nil && !x.shown.Exists() {
		err = ErrNotFound
	}
	if err != nil {
		x.fail(err)
		return
	}
	if x.Waits != nil && !x.prs && x.r.Header.Get("Accept") == "application/json" {
		x.w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(x.w).Encode(x.Waits(x.r.Context(), x.ref)) // it fails only where the client has gone
		return
	}
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(x.w, "ref: %s\n", branch)
}

// noRefs is how newer versions of git advertise what they can do where there is no reference yet.
// Before 2.41, upload-pack only sends a flush, from which a client cannot learn that it may ask for
// objects by id.
const noRefs = ZeroID + " capabilities^{}\x00multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not " +
	"deepen-relative no-progress include-tag multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done filter " +
	"object-format=sha1 agent=git/tendril\n"

func pktLine(payload string) string { return fmt.Sprintf("%04x%s", len(payload)+4, payload) }

// advertise answers GET info/refs: what there is to fetch, or to push to.
func (x *exchange) advertise(service string) {
	protocol := x.protocol()
	out := &answer{x: x, contentType: "application/x-" + service + "-advertisement", preamble: pktLine("# service="+service+"\n") + "0000"}
	command := func() *repository.Command { return x.shown.UploadPack(true, protocol) }
	switch {
	case service == uploadPack && protocol == "version=2":
		out.preamble = ""
	case service == uploadPack:
	case service == receivePack: // knows no version 2
		command = func() *repository.Command { return x.shown.ReceivePack(true, x.MaxPushBytes) }
	default:
		http.Error(x.w, "only git-upload-pack and git-receive-pack are served, not the dumb HTTP protocol or an archive", http.StatusForbidden)
		return
	}
	began := time.Now()
	if has, err := x.shown.HasObjects(); service == uploadPack && protocol != "version=2" && err == nil && !has && x.shown.Exists() {
		if protocol == "version=1" {
			out.preamble += pktLine("version 1")
		}
		_, err := out.Write([]byte(pktLine(noRefs) + "0000"))
		x.count(operationRefs, began, err)
		return
	}
	x.count(operationRefs, began, x.stream(command, out))
}

// fetch answers POST git-upload-pack. Git begins when the whole request is here.
func (x *exchange) fetch() {
	began := time.Now()
	request, end := x.spool(func() error { return nil })
	defer end()
	body, err := x.requestBody(maxNegotiation)
	if err == nil {
		_, err = io.Copy(request, body)
	}
	if err != nil {
		x.fail(err)
		x.count(operationFetch, began, err)
		return
	}
	out := &answer{x: x, contentType: "application/x-" + uploadPack + "-result"}
	err = x.stream(func() *repository.Command {
		c := x.shown.UploadPack(false, x.protocol())
		c.Stdin = request.Reader()
		return c
	}, out)
	x.count(operationFetch, began, err)
	if !out.pack {
		return // a step of the negotiation, or a list of references
	}
	user := userClones
	said, _ := io.ReadAll(io.LimitReader(request.Reader(), 1<<20))
	if bytes.Contains(said, []byte("have ")) || bytes.Contains(said, []byte("shallow ")) {
		user = userFetches // it has a part of the history already
	}
	x.count(user, began, err)
}

// stream runs a git command whose output is the answer. If the repository was removed after it had
// been found, the answer is that of one that is not there.
func (x *exchange) stream(command func() *repository.Command, out *answer) error {
	err := x.pass(command(), out)
	if err != nil && !out.begun && x.r.Context().Err() == nil && !x.shown.Exists() {
		if err = x.find(); err == nil {
			err = x.pass(command(), out)
		}
	}
	if err != nil && !out.begun {
		x.fail(err)
	}
	return err
}

// pass passes on what git prints, at the pace of the client and not of git.
func (x *exchange) pass(c *repository.Command, out *answer) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	between := newBuffer(x.repo.Store().Scratch, &room{disk: x.disk, client: x.client})
	c.Stdout, c.Client, c.Patience = between, x.client, x.Patience
	if c.Time == 0 {
		c.Time = fetchTime
	}
	var git sync.WaitGroup
	git.Go(func() {
		err := c.Run(ctx)
		if err == nil {
			err = io.EOF
		}
		between.end(err)
	})
	defer git.Wait()
	defer between.close()
	defer cancel()
	for part := make([]byte, chunk); ; {
		n, err := between.Read(part)
		if n > 0 {
			if _, err := out.Write(part[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return out.begin()
		}
		if err != nil {
			return err
		}
	}
}

// protocol reads the Git-Protocol header, "version=2" for example, and gives what of it git is to
// know. What else stands there, a list of keys that we do not know, is left out.
func (x *exchange) protocol() string {
	for part := range strings.SplitSeq(x.r.Header.Get("Git-Protocol"), ":") {
		if part == "version=1" || part == "version=2" {
			return part
		}
	}
	return ""
}
