package main

import (
	"bufio"
	"errors"
	"os"
)

// output is where events are written to: standard output, or a file that appears when it is whole.
type output struct {
	*bufio.Writer
	file *os.File
	name string // what the file is called in the end; empty: it is so already
}

func openOutput(name string) (o *output, err error) {
	o = &output{file: os.Stdout}
	if info, missing := os.Stat(name); missing == nil && !info.Mode().IsRegular() {
		o.file, err = os.OpenFile(name, os.O_WRONLY, 0)
	} else if name != "-" {
		o.name = name
		o.file, err = os.Create(name + ".part")
	}
	o.Writer = bufio.NewWriterSize(o.file, 1<<20)
	return o, err
}

// finish brings everything to the disk and gives the file its name.
func (o *output) finish() error {
	err := o.Flush()
	if err == nil && o.name != "" {
		err = errors.Join(o.file.Sync(), os.Rename(o.file.Name(), o.name))
		o.name = ""
	}
	return err
}

// discard removes what was not finished.
func (o *output) discard() {
	o.file.Close()
	if o.name != "" {
		os.Remove(o.file.Name())
	}
}
