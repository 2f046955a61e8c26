package githttp

import (
	"bytes"
	"cmp"
	"context"
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
	if err != nil {
		x.fail(err)
		return
	}
	x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(x.w, "ref: %s\n", branch)
}

// noRefs is how newer versions of git advertise what they can do where there is no reference yet.
// Before 2.41, upload-pack only sends a flush, from which a client cannot learn that it may ask for
// objects by id.
const noRefs = ZeroID +
	" capabilities^{}\x00multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not " +
	"deepen-relative no-progress include-tag multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done filter " +
	"object-format=sha1 agent=git/tendril\n"

func pktLine(payload string) string { return fmt.Sprintf("%04x%s", len(payload)+4, payload) }

// advertise answers GET info/refs: what there is to fetch, or to push to.
func (x *exchange) advertise(service string) {
	protocol := x.protocol()
	x.contentType = "application/x-" + service + "-advertisement"
	x.preamble = pktLine("# service="+service+"\n") + "0000"
	var c *repository.Command
	switch service {
	case receivePack: // knows no version 2
		c = x.shown.AdvertisePush(x.MaxPushBytes)
	case uploadPack:
		c = x.shown.UploadPack(true, protocol)
		if protocol == "version=2" {
			x.preamble = ""
			break
		}
		if has, err := x.shown.HasObjects(); err == nil && !has && x.shown.Exists() {
			if protocol == "version=1" {
				x.preamble += pktLine("version 1")
			}
			_, err := io.WriteString(x, pktLine(noRefs)+"0000")
			x.end(err, "info_refs")
			return
		}
	default:
		http.Error(x.w, "only git-upload-pack and git-receive-pack are served, not the dumb HTTP protocol or an archive",
			http.StatusForbidden)
		return
	}
	x.end(x.pass(c), "info_refs")
}

// fetch answers POST git-upload-pack. Git begins when the whole request is here.
func (x *exchange) fetch() {
	request := x.repo.Store.Spool(x.client, nil)
	defer request.Close()
	body, err := x.requestBody(maxNegotiation)
	if err == nil {
		_, err = io.Copy(request, body)
	}
	if err == nil {
		x.contentType = "application/x-" + uploadPack + "-result"
		c := x.shown.UploadPack(false, x.protocol())
		c.Stdin = request.Reader(0)
		err = x.pass(c)
	}
	operations := []string{"upload_pack"}
	if x.pack { // else it is a step of the negotiation, or a list of references
		said, _ := io.ReadAll(io.LimitReader(request.Reader(0), 1<<20))
		user := "clone"
		if bytes.Contains(said, []byte("have ")) || bytes.Contains(said, []byte("shallow ")) {
			user = "fetch" // it has a part of the history already
		}
		operations = append(operations, user)
	}
	x.end(err, operations...)
}

// pass answers by what git prints, at the pace of the client and not of git.
func (x *exchange) pass(c *repository.Command) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	spool := x.repo.Store.Spool(x.client, nil)
	defer spool.Close()
	between := &buffer{changed: sync.NewCond(new(sync.Mutex)), spool: spool}
	c.Stdout, c.Client, c.Patience = between, x.client, x.Patience
	c.Time = cmp.Or(c.Time, fetchTime)
	var git sync.WaitGroup
	git.Go(func() { between.end(cmp.Or(c.Run(ctx), io.EOF)) })
	defer git.Wait()
	defer between.end(errGone)
	defer cancel()
	if _, err := io.CopyBuffer(x, between, make([]byte, chunk)); err != nil {
		return err
	}
	return x.begin()
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
