package fetch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

// maxAnswers bounds the lines before a pack: one ACK or NAK, which some servers repeat.
const maxAnswers = 64

// refusedWant is a server's word that it does not give an object.
type refusedWant struct {
	id   string // "" where it did not say which
	told string
}

func (e *refusedWant) Error() string { return "it says: " + e.told }

// asking is a message that asks for objects, and how the answer will come.
type asking struct {
	body    []byte
	band    bands
	version string // of the protocol: the Git-Protocol header, or ""
}

// request asks for objects and stores the pack that comes, if it has something of what is missing.
// The repository reads a pack in whole before git sees it, so that no process waits for a slow
// server.
func (f *fetching) request(ctx context.Context, s *server, ask asking) (err error) {
	asked, pace, end := f.limits.paced(ctx)
	defer end() // nothing is read of the body once this returns
	defer func() { err = tooSlow(asked, err) }()
	request, err := http.NewRequestWithContext(asked, http.MethodPost, s.base+"/git-upload-pack", bytes.NewReader(ask.body))
	if err != nil {
		return notGit("its URL cannot be asked: %w", err)
	}
	request.Header.Set("Content-Type", requestType)
	request.Header.Set("Accept", resultType)
	if ask.version != "" {
		request.Header.Set("Git-Protocol", ask.version)
	}
	response, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := checkResponse(response, resultType); err != nil {
		return err
	}
	from := &recordingReader{from: netguard.LimitBody(pace.of(response.Body), f.left)}
	pack, err := openPack(bufio.NewReaderSize(from, 64<<10), ask.band)
	if err != nil {
		return err
	}
	bytes, objects, err := f.into.StoreWanted(ctx, pace.until(pack), f.missing)
	f.left -= from.n
	f.result.Bytes += bytes
	if err != nil {
		return explain(ctx, from, pack, err)
	}
	f.result.Objects += objects
	return nil
}

// explain finds the first cause where git only knows that its input ended.
func explain(ctx context.Context, from *recordingReader, pack *packReader, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case from.err != nil:
		return &Error{Cause: classify(from.err), Err: fmt.Errorf("%w: %w", from.err, err)}
	case pack.err != nil:
		return pack.err
	case errors.Is(err, repository.ErrBadPack):
		return err
	case errors.Is(err, repository.ErrUnwanted):
		return &Error{Cause: CauseNoSuchObject, Err: repository.ErrUnwanted}
	}
	return ours(err)
}

// encoding writes wants, haves and "done" in one message.
type encoding func(offered *capability.List, want, have []string) asking

// encodeRequest writes them in protocol version 0 (gitprotocol-pack).
func encodeRequest(offered *capability.List, want, have []string) asking {
	var ask asking
	words := []capability.Capability{capability.OFSDelta, capability.ThinPack, capability.NoProgress}
	switch {
	case offered.Supports(capability.Sideband64k):
		ask.band, words = band64k, append(words, capability.Sideband64k)
	case offered.Supports(capability.Sideband):
		ask.band, words = bandSmall, append(words, capability.Sideband)
	}
	first := want[0]
	for _, word := range words {
		if offered.Supports(word) {
			first += " " + word.String()
		}
	}
	var m message
	m.lines("want ", first)
	m.lines("want ", want[1:]...)
	m.Write(pktline.FlushPkt)
	m.lines("have ", have...)
	m.lines("", "done")
	ask.body = m.Bytes()
	return ask
}

// encodeVersion2 writes them as a fetch command of protocol version 2 (gitprotocol-v2).
func encodeVersion2(_ *capability.List, want, have []string) asking {
	var m message
	m.lines("", "command=fetch")
	m.WriteString(delimiter)
	m.lines("", "thin-pack", "no-progress", "ofs-delta")
	m.lines("want ", want...)
	m.lines("have ", have...)
	m.lines("", "done")
	m.Write(pktline.FlushPkt)
	return asking{body: m.Bytes(), band: band64k, version: "version=2"}
}

// delimiter is the packet between the parts of a command of version 2.
const delimiter = "0001"

// message is packets on their way to a server.
type message struct{ bytes.Buffer }

// lines adds a packet for each of the words. They are short, and a buffer takes everything, so that
// no error can come.
func (m *message) lines(prefix string, words ...string) {
	packets := pktline.NewEncoder(&m.Buffer)
	for _, word := range words {
		_ = packets.EncodeString(prefix + word + "\n")
	}
}

// bands says how a pack is wrapped.
type bands int

const (
	bandNone bands = iota
	bandSmall
	band64k
)

// openPack reads the server's ACK or NAK, or the name of the section, and gives the pack behind it.
func openPack(r *bufio.Reader, band bands) (*packReader, error) {
	for range maxAnswers {
		head, err := r.Peek(8)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if len(head) == 8 && !isAnswer(head[4:]) {
			return newPackReader(r, band), nil
		}
		lines := pktline.NewScanner(r)
		if !lines.Scan() || len(lines.Bytes()) == 0 {
			return nil, refusal(lines.Err())
		}
		if !isAnswer(lines.Bytes()) {
			return nil, notGit("its answer to what is wanted is no ACK or NAK")
		}
	}
	return nil, notGit("it sends ACK and NAK without end")
}

// answers begin the lines before a pack: those of version 0, the name of the section that is the
// pack in version 2, and an error.
var answers = [][]byte{[]byte("NAK"), []byte("ACK"), []byte("packfile\n"), []byte("ERR ")}

// isAnswer reports whether a line, or the first four bytes of one, is such a line.
func isAnswer(line []byte) bool {
	for _, answer := range answers {
		if bytes.HasPrefix(line, answer[:min(4, len(answer))]) {
			return true
		}
	}
	return false
}

var notOurs = regexp.MustCompile(`not our ref ([0-9a-f]{40})\b`)

// refusal understands a server that ended the conversation. What it says, or hangs up over, is most
// often an object that it does not give.
func refusal(err error) error {
	spoken, ok := errors.AsType[*pktline.ErrorLine](err)
	if !ok {
		if err == nil {
			return &refusedWant{told: "nothing"}
		}
		return badLines(err, "its answer to what is wanted ends too soon")
	}
	words := told(spoken.Text)
	if found := notOurs.FindStringSubmatch(words); found != nil {
		return &refusedWant{id: found[1], told: words}
	}
	if strings.Contains(words, "not our ref") || strings.Contains(words, "not a valid") || strings.Contains(words, "unadvertised") {
		return &refusedWant{told: words}
	}
	return badLines(err, "its answer to what is wanted ends too soon")
}

// packReader is a pack without its wrapping.
type packReader struct {
	from io.Reader
	err  error // what was wrong with the wrapping
}

func newPackReader(r io.Reader, band bands) *packReader {
	switch band {
	case band64k:
		return &packReader{from: sideband.NewDemuxer(sideband.Sideband64k, r)}
	case bandSmall:
		return &packReader{from: sideband.NewDemuxer(sideband.Sideband, r)}
	}
	return &packReader{from: r}
}

// Read reads some of the pack.
func (p *packReader) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		// The demuxer gives a server's last words, of any length, as an error without a type.
		p.err = &Error{Cause: CauseServer, Err: errors.New("the pack breaks off: " + told(err.Error()))}
		err = p.err
	}
	return n, err
}

// recordingReader counts, and remembers how reading failed.
type recordingReader struct {
	from io.Reader
	n    int64
	err  error
}

// Read reads from the source.
func (r *recordingReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
