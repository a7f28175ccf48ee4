package acker;

import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import org.apache.storm.daemon.Acker;
import org.apache.storm.task.GeneralTopologyContext;
import org.apache.storm.task.IOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.TupleImpl;

/**
 * Storm's Acker bolt alone, without queues and threads: one init and three acks a tree, at a steady number of pending trees.
 *
 * Every step starts one tree and acks three others of different ages. The oldest one gets its last ack. Therefore no
 * update finds its entry in the cache. Ids are made as in this project (mix64 of a
 * counter). No ticks. Usage: AckerAlone SECONDS PENDING...
 */
public final class AckerAlone {
    private static final int ROUNDS = 5;
    private static final int STEPS = 4096;

    private final Acker acker = new Acker();
    private final Update init = new Update(Acker.ACKER_INIT_STREAM_ID);
    private final Update ack = new Update(Acker.ACKER_ACK_STREAM_ID);
    private final Told told = new Told();
    private final long pending;
    private long started;

    private AckerAlone(long pending) {
        this.pending = pending;
        acker.prepare(new HashMap<>(), null, new OutputCollector(told));
    }

    public static void main(String[] arguments) {
        double seconds = Double.parseDouble(arguments[0]);
        for (String pending : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            System.out.println(new AckerAlone(Long.parseLong(pending)).measure(seconds));
        }
    }

    private String measure(double seconds) {
        long before = usedBytes();
        while (started < pending) {
            start(started++);
            ackIfStarted(started - 1 - pending / 3, 1);
            ackIfStarted(started - 1 - 2 * pending / 3, 2);
        }
        double bytes = (double) (usedBytes() - before) / pending;
        run(seconds);
        double[] rates = new double[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            rates[round] = run(seconds);
        }
        Arrays.sort(rates);
        if (told.acked != started - pending) {
            throw new IllegalStateException(told.acked + " trees were acked of " + (started - pending));
        }
        return String.format("{\"pending\": %d, \"updates_per_s\": %.0f, \"bytes_a_root\": %.1f}",
            pending, rates[ROUNDS / 2], bytes);
    }

    /** Returns updates a second, measured for about this many seconds. */
    private double run(double seconds) {
        long begun = System.nanoTime();
        long from = started;
        while (System.nanoTime() - begun < seconds * 1e9) {
            for (int step = 0; step < STEPS; step++, started++) {
                start(started);
                ackIfStarted(started - pending / 3, 1);
                ackIfStarted(started - 2 * pending / 3, 2);
                ackIfStarted(started - pending, 3);
            }
        }
        return 4 * (started - from) / ((System.nanoTime() - begun) / 1e9);
    }

    private void start(long number) {
        long root = mix64(number + 1);
        init.set(root, edge(root, 1) ^ edge(root, 2) ^ edge(root, 3));
        acker.execute(init);
    }

    private void ackIfStarted(long number, int which) {
        if (number >= 0) {
            long root = mix64(number + 1);
            ack.set(root, edge(root, which));
            acker.execute(ack);
        }
    }

    private static long edge(long root, int which) {
        return mix64(root ^ which);
    }

    private static long mix64(long value) {
        value = (value ^ value >>> 30) * 0xBF58476D1CE4E5B9L;
        value = (value ^ value >>> 27) * 0x94D049BB133111EBL;
        return value ^ value >>> 31;
    }

    private static long usedBytes() {
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    /** A tuple as the acker sees it; one object for all updates, so that making tuples costs Storm nothing here. */
    private static final class Update extends TupleImpl {
        private final String stream;
        private Long root;
        private Long val;

        Update(String stream) {
            super(new Nowhere(), List.of(), "spout", 1, stream);
            this.stream = stream;
        }

        void set(long root, long val) {
            this.root = root;
            this.val = val;
        }

        @Override public String getSourceStreamId() {
            return stream;
        }

        @Override public String getSourceComponent() {
            return "spout";
        }

        @Override public Object getValue(int index) {
            return index == 0 ? root : val;
        }

        @Override public Long getLong(int index) {
            return index == 0 ? root : val;
        }

        @Override public Integer getInteger(int index) {
            return 1;
        }
    }

    /** The context that every tuple has to have. */
    private static final class Nowhere extends GeneralTopologyContext {
        Nowhere() {
            super(null, new HashMap<>(), new HashMap<>(), new HashMap<>(), new HashMap<>(), "");
        }

        @Override public boolean doSanityCheck() {
            return false;
        }
    }

    /** Counts the messages of the acker to the spout. */
    private static final class Told implements IOutputCollector {
        private long acked;

        @Override public void emitDirect(int task, String stream, Collection<Tuple> anchors, List<Object> values) {
            acked++;
        }

        @Override public List<Integer> emit(String stream, Collection<Tuple> anchors, List<Object> values) {
            throw new UnsupportedOperationException();
        }

        @Override public void ack(Tuple tuple) { }

        @Override public void fail(Tuple tuple) { }

        @Override public void resetTimeout(Tuple tuple) { }

        @Override public void flush() { }

        @Override public void reportError(Throwable error) {
            throw new IllegalStateException(error);
        }
    }
}
