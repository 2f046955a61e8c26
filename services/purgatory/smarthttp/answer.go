package smarthttp

import (
	"bytes"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
)

// maxReason bounds the reason that stands behind each refused reference.
const maxReason = 300

// answer is what a client that pushes gets: a report on each reference and words for the terminal,
// in the form that it asked for.
type answer struct {
	request *pushRequest
	out     *responseStream
}

func newAnswer(request *pushRequest, out *responseStream) *answer {
	return &answer{request: request, out: out}
}

// emptyPacket is what git itself sends to keep a connection alive: a side-band packet without
// content.
const emptyPacket = "0005\x01"

// keepAlive sends an empty packet from time to time until it is stopped. It is for a client that
// has sent everything and only waits: an answer that begins before the request has ended makes many
// clients and proxies stop sending.
func (a *answer) keepAlive(every time.Duration) (stop func()) {
	if !a.request.sideband || !a.request.report {
		return func() {}
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if _, err := a.out.Write([]byte(emptyPacket)); err != nil {
					return
				}
			}
		}
	})
	return func() { close(done); running.Wait() }
}

// send writes the answer.
func (a *answer) send(o outcome) error {
	var b bytes.Buffer
	var err error
	switch {
	case a.request.sideband:
		err = a.muxed(&b, o)
	case a.request.report:
		err = o.report.Encode(&b)
	}
	if err != nil {
		return err
	}
	if b.Len() == 0 {
		return a.out.begin()
	}
	_, err = a.out.Write(b.Bytes())
	return err
}

// muxed writes words for the terminal on the channel of progress, and the report on that of data.
func (a *answer) muxed(b *bytes.Buffer, o outcome) error {
	mux := sideband.NewMuxer(sideband.Sideband64k, b)
	if o.message != "" {
		if _, err := mux.WriteChannel(sideband.ProgressMessage, []byte(strings.TrimRight(o.message, "\n")+"\n")); err != nil {
			return err
		}
	}
	if a.request.report {
		var report bytes.Buffer
		if err := o.report.Encode(&report); err != nil {
			return err
		}
		if _, err := mux.Write(report.Bytes()); err != nil {
			return err
		}
	}
	return pktline.NewEncoder(b).Flush()
}

// refusalReport says of every command that it was not carried out.
func refusalReport(commands []Command, reason string) *packp.ReportStatus {
	report := packp.NewReportStatus()
	report.UnpackStatus = "ok"
	line := oneLine(reason)
	for _, c := range commands {
		report.CommandStatuses = append(report.CommandStatuses,
			&packp.CommandStatus{ReferenceName: plumbing.ReferenceName(c.Name), Status: line})
	}
	return report
}

// oneLine makes a reason fit behind a reference.
func oneLine(reason string) string {
	line := strings.Join(strings.FieldsFunc(reason, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }), " ")
	if len(line) > maxReason {
		line = strings.ToValidUTF8(line[:maxReason], "") + "…"
	}
	if line == "" || line == "ok" {
		return "refused"
	}
	return line
}
