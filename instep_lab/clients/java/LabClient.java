import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidRequiredAcksException;
import org.apache.kafka.common.errors.NotEnoughReplicasException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.StaleMemberEpochException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A client of the lab that uses Kafka's Java library: a publisher or a consumer.
 *
 * <p>It reads a plan (see Publishing and Consuming in Python), and writes the same history of
 * operations as the other clients. With a plan and a history as arguments, it is the only client of
 * its process, and the connection is in the environment. Without arguments, the process hosts
 * clients in threads: each line of the input starts or stops one.
 */
public final class LabClient {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String BUG = "lab.bug";

  /** Tells a client to end in an orderly way. */
  private static final class Stop {
    private volatile boolean requested;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length == 0) {
      host();
      Runtime.getRuntime().halt(0);
    }
    JsonNode connection = JSON.readTree(System.getenv("INSTEP_LAB_CONNECTION"));
    Stop stop = new Stop();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> endBy(stop)));
    int status =
        run(Path.of(arguments[0]), connection, Path.of(arguments[1]), stop, System.err);
    // This ends the hook as well. If the hook ended first, the status would be that of the signal.
    Runtime.getRuntime().halt(status);
  }

  /** Run clients in threads until the input ends. */
  private static void host() throws IOException {
    Map<String, Stop> clients = new HashMap<>();
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonNode command = JSON.readTree(line);
      String history = command.get("history").asText();
      if (command.has("plan")) {
        Stop stop = new Stop();
        clients.put(history, stop);
        Thread thread = new Thread(() -> runHosted(command, Path.of(history), stop));
        thread.setDaemon(true);
        thread.start();
      } else {
        clients.get(history).requested = true;
      }
    }
  }

  /** Run a client of a host, and write its exit status to a file when it has ended. */
  private static void runHosted(JsonNode command, Path history, Stop stop) {
    try (PrintStream log = new PrintStream(command.get("log").asText(), StandardCharsets.UTF_8)) {
      Path plan = Path.of(command.get("plan").asText());
      int status = run(plan, command.get("connection"), history, stop, log);
      log.flush();
      Path ended = Path.of(command.get("status").asText());
      Path incomplete = Path.of(ended + ".new");
      Files.writeString(incomplete, Integer.toString(status));
      Files.move(incomplete, ended, StandardCopyOption.ATOMIC_MOVE);
    } catch (IOException failure) {
      failure.printStackTrace();
    }
  }

  private static int run(
      Path planFile, JsonNode connection, Path historyFile, Stop stop, PrintStream errors) {
    try {
      JsonNode plan = JSON.readTree(Files.readAllBytes(planFile));
      try (History history = new History(historyFile, plan)) {
        if (plan.get("type").asText().equals("publish")) {
          new Publisher(plan, connection, history, stop).run();
        } else if (plan.get("type").asText().equals("measure")) {
          new Measurer(plan, connection, history, stop).run();
        } else {
          new Reader(plan, connection, history, stop).run();
        }
      }
      return 0;
    } catch (Throwable failure) {
      failure.printStackTrace(errors);
      return 1;
    }
  }

  /** Let SIGTERM end the client in an orderly way: the JVM waits for this hook, or for the halt. */
  private static void endBy(Stop stop) {
    stop.requested = true;
    try {
      TimeUnit.SECONDS.sleep(60);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** Die by SIGKILL, like the other clients: no hook runs, and no buffer is flushed. */
  private static void die() {
    try {
      String pid = Long.toString(ProcessHandle.current().pid());
      new ProcessBuilder("kill", "-9", pid).start();
      Thread.sleep(60_000);
    } catch (IOException | InterruptedException failure) {
      throw new IllegalStateException("kill -9 did not work", failure);
    }
  }

  private static Properties properties(JsonNode connection, JsonNode plan, Map<String, ?> defaults) {
    Properties properties = new Properties();
    properties.putAll(defaults);
    for (JsonNode given : List.of(plan.path("config"), connection)) {
      given
          .properties()
          .forEach(
              entry -> {
                if (entry.getValue().isNull()) {
                  properties.remove(entry.getKey());
                } else {
                  properties.put(entry.getKey(), entry.getValue().asText());
                }
              });
    }
    properties.put("client.id", plan.get("member").asText());
    properties.remove(BUG);
    return properties;
  }

  /** A bug that the tests of the lab put into this client, to check that the lab notices it. */
  private static final class SeededBug {
    private static final int RATE = 37;

    private final String name;
    private int calls;

    SeededBug(JsonNode connection) {
      name = connection.path(BUG).asText("");
    }

    boolean is(String bug) {
      return name.equals(bug);
    }

    /** Return whether this is the bug, and it shows this time. */
    boolean hits(String bug) {
      return is(bug) && ++calls % RATE == 0;
    }
  }

  /**
   * Appends operations to the history, one unbuffered line each.
   *
   * <p>With a sampled plan, only the first and the last operation of each kind are written.
   */
  private static final class History implements AutoCloseable {
    private final OutputStream file;
    private final String group;
    private final String member;
    private final boolean sampled;
    private final Map<String, ObjectNode> last = new LinkedHashMap<>();

    History(Path path, JsonNode plan) throws IOException {
      file = new FileOutputStream(path.toFile(), true);
      sampled = plan.path("sampled").asBoolean();
      group = plan.path("group").asText("");
      member = plan.get("member").asText();
    }

    ObjectNode operation(String kind, String outcome) {
      ObjectNode one = JSON.createObjectNode();
      one.put("kind", kind).put("outcome", outcome).put("at_ns", System.nanoTime());
      one.put("member", member);
      if (!group.isEmpty()) {
        one.put("group", group);
      }
      return one;
    }

    synchronized void note(ObjectNode operation) {
      String kind = operation.path("kind").asText();
      if (sampled && last.containsKey(kind)) {
        last.put(kind, operation);
        return;
      }
      last.put(kind, null); // written, as the first one
      write(operation);
    }

    private void write(ObjectNode operation) {
      try {
        file.write((operation + "\n").getBytes(StandardCharsets.UTF_8));
      } catch (IOException failure) {
        throw new IllegalStateException("cannot write the history", failure);
      }
    }

    @Override
    public synchronized void close() throws IOException {
      last.values().stream().filter(Objects::nonNull).forEach(this::write);
      file.close();
    }
  }

  /** Sends the workload: random keys, with a number that increases per key. */
  private static final class Publisher {
    private static final long BLOCKED_NS = TimeUnit.MILLISECONDS.toNanos(500);
    private static final String BLOCKED = "send() blocked";

    private final JsonNode plan;
    private final History history;
    private final Stop stop;
    private final KafkaProducer<byte[], byte[]> producer;
    private final Map<String, Integer> numbers = new HashMap<>();
    private final Random random;
    private final boolean transactional;
    private final String id = UUID.randomUUID().toString().substring(0, 8);
    private final Map<String, Integer> open = new ConcurrentHashMap<>();
    private final SeededBug bug;
    private final Map<String, Integer> heldBack = new LinkedHashMap<>();
    private int handedOver;
    private double retries;
    private int transactions;
    private int inTransaction;

    Publisher(JsonNode plan, JsonNode connection, History history, Stop stop) {
      this.plan = plan;
      this.history = history;
      this.stop = stop;
      bug = new SeededBug(connection);
      Map<String, String> defaults =
          Map.of(
              "key.serializer", ByteArraySerializer.class.getName(),
              "value.serializer", ByteArraySerializer.class.getName());
      producer = new KafkaProducer<>(properties(connection, plan, defaults));
      random = new Random(plan.get("seed").asText().hashCode());
      transactional = !plan.get("transaction").isNull();
      if (transactional) {
        producer.initTransactions();
      }
    }

    void run() throws InterruptedException {
      try {
        sendAll();
      } finally {
        // Without the flush, the process ends as it is: to close the client would flush.
        if (plan.get("flush").asBoolean()) {
          producer.close(Duration.ZERO);
        }
      }
    }

    private void sendAll() throws InterruptedException {
      int count = plan.get("count").asInt();
      double perSecond = plan.path("per_s").asDouble(0);
      long began = System.nanoTime();
      for (int number = 0; number < count && !stop.requested; number++) {
        if (perSecond > 0) {
          long due = began + (long) (number / perSecond * 1e9);
          long ahead = due - System.nanoTime();
          if (ahead > 0) {
            TimeUnit.NANOSECONDS.sleep(ahead);
          }
        }
        send();
        if (plan.path("note_retries").asBoolean()) {
          noteRetries();
        }
        if (number == 0 && plan.get("warm").asBoolean()) {
          producer.flush();
          began = System.nanoTime();
        }
        if (plan.path("dies_after").asInt(-1) == number + 1 && !bug.is("no death")) {
          die();
        }
      }
      heldBack.forEach(this::send);
      if (inTransaction > 0) {
        endTransaction();
      }
      if (plan.get("flush").asBoolean()) {
        producer.flush();
      }
      for (Map.Entry<String, Integer> left : open.entrySet()) {
        String key = left.getKey().substring(0, left.getKey().indexOf('#'));
        note(key, left.getValue(), "unknown", "no answer");
      }
    }

    /** Record it if records were sent again since the last call. */
    private void noteRetries() {
      double now =
          producer.metrics().entrySet().stream()
              .filter(one -> one.getKey().name().equals("record-retry-total"))
              .filter(one -> one.getKey().group().equals("producer-metrics"))
              .mapToDouble(one -> (Double) one.getValue().metricValue())
              .sum();
      if (now > retries) {
        String note = (int) (now - retries) + " records sent again";
        history.note(history.operation("fault", "fail").put("note", note));
        retries = now;
      }
    }

    private void send() {
      int keyNumber = plan.path("first_key").asInt(0) + random.nextInt(plan.get("keys").asInt());
      String key = "k" + keyNumber;
      int number = numbers.getOrDefault(key, plan.get("first").asInt());
      numbers.put(key, number + 1);
      if (bug.hits("drop")) {
        note(key, number, "ok", "");
      } else if (bug.hits("swap") && !heldBack.containsKey(key)) {
        heldBack.put(key, number);
      } else {
        send(key, number);
        Integer earlier = heldBack.remove(key);
        if (earlier != null) {
          send(key, earlier);
        }
      }
    }

    private void send(String key, int number) {
      if (transactional && inTransaction == 0) {
        producer.beginTransaction();
        transactions++;
      }
      ProducerRecord<byte[], byte[]> record =
          new ProducerRecord<>(
              plan.get("topic").asText(),
              partition(key),
              plan.get("timestamp_ms").isNull() ? null : plan.get("timestamp_ms").asLong(),
              plan.get("keyed").asBoolean() ? encoded(key) : null,
              value(key, number));
      record.headers().add("sender", id.getBytes(StandardCharsets.UTF_8));
      String sequence = Integer.toString(handedOver++);
      record.headers().add("sequence", sequence.getBytes(StandardCharsets.UTF_8));
      String mode = plan.get("mode").asText();
      boolean forget = mode.equals("forget");
      if (forget) {
        note(key, number, "unknown", "fire and forget");
      } else {
        open.put(key + "#" + number, number);
      }
      long began = System.nanoTime();
      long beganMs = System.currentTimeMillis();
      Callback callback =
          forget
              ? null
              : (metadata, failure) -> delivered(key, number, began, beganMs, metadata, failure);
      try {
        Future<RecordMetadata> answer = producer.send(record, callback);
        if (bug.hits("repeat")) {
          producer.send(record);
        }
        long took = System.nanoTime() - began;
        if (took > BLOCKED_NS) {
          history.note(history.operation("fault", "ok").put("took_ns", took).put("note", BLOCKED));
        }
        if (mode.equals("wait")) {
          answer.get();
        }
      } catch (ExecutionException failure) {
        // the callback has recorded it
      } catch (InterruptedException interrupted) {
        stop.requested = true;
      } catch (KafkaException failure) {
        open.remove(key + "#" + number);
        note(key, number, "fail", name(failure));
      }
      if (transactional && ++inTransaction == plan.get("transaction").asInt()) {
        endTransaction();
      }
    }

    private Integer partition(String key) {
      if (plan.get("by_number").isNull()) {
        return null;
      }
      return Integer.parseInt(key.substring(1)) % plan.get("by_number").asInt();
    }

    private byte[] encoded(String key) {
      switch (plan.get("encoding").asText()) {
        case "digits":
          return key.substring(1).getBytes(StandardCharsets.UTF_8);
        case "integer":
          return ByteBuffer.allocate(4).putInt(Integer.parseInt(key.substring(1))).array();
        default:
          return key.getBytes(StandardCharsets.UTF_8);
      }
    }

    private byte[] value(String key, int number) {
      StringBuilder text = new StringBuilder(key).append('#').append(number).append('|');
      while (text.length() < plan.get("size").asInt()) {
        text.append('.');
      }
      return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private void delivered(
        String key,
        int number,
        long began,
        long beganMs,
        RecordMetadata metadata,
        Exception failure) {
      open.remove(key + "#" + number);
      ObjectNode one = history.operation("send", failure == null ? "ok" : outcome(failure));
      // By the same clock reading, so that the start of the send can be computed.
      one.put("took_ns", one.get("at_ns").asLong() - began).put("key", key).put("number", number);
      one.put("timestamp_ms", beganMs);
      if (failure == null) {
        one.put("topic", metadata.topic()).put("partition", metadata.partition());
        // -1 if the broker does not tell it: without acknowledgements, or for a recognised repeat
        one.put("offset", metadata.offset() + (bug.hits("other offsets") ? 1 : 0));

      } else {
        one.put("note", name(failure));
      }
      note(one);
    }

    private void note(String key, int number, String outcome, String note) {
      note(history.operation("send", outcome).put("key", key).put("number", number).put("note", note));
    }

    private void note(ObjectNode one) {
      if (transactional) {
        one.put("transaction", transaction());
      }
      history.note(one);
    }

    private String transaction() {
      return plan.get("member").asText() + "-" + transactions;
    }

    private void endTransaction() {
      boolean aborts =
          !plan.get("abort_every").isNull() && transactions % plan.get("abort_every").asInt() == 0;
      String outcome = aborts ? "fail" : "ok";
      long began = System.nanoTime();
      try {
        if (aborts) {
          producer.flush();
          producer.abortTransaction();
        } else {
          producer.commitTransaction();
        }
      } catch (KafkaException failure) {
        outcome = "unknown";
        history.note(history.operation("fault", "fail").put("note", name(failure)));
      }
      inTransaction = 0;
      ObjectNode one = history.operation("commit", outcome).put("took_ns", System.nanoTime() - began);
      note(one);
    }
  }

  /** Puts the key k into partition k modulo the number of partitions. */
  public static final class NumericPartitioner implements Partitioner {
    private boolean digits;

    @Override
    public void configure(Map<String, ?> settings) {
      digits = "digits".equals(settings.get("lab.key.encoding"));
    }

    @Override
    public int partition(
        String topic, Object key, byte[] keyBytes, Object value, byte[] bytes, Cluster cluster) {
      int number =
          digits
              ? Integer.parseInt(new String(keyBytes, StandardCharsets.UTF_8))
              : ByteBuffer.wrap(keyBytes).getInt();
      return Math.floorMod(number, cluster.partitionCountForTopic(topic));
    }

    @Override
    public void close() {}
  }

  /** Measures producers with different settings, in turns, without a history (see Measuring). */
  private static final class Measurer {
    private static final int VALUES = 1_000;

    private final JsonNode plan;
    private final JsonNode connection;
    private final History results;
    private final Stop stop;
    private final byte[][] keys = new byte[VALUES][];
    private final byte[][] values = new byte[VALUES][];
    private final SeededBug bug;

    Measurer(JsonNode plan, JsonNode connection, History results, Stop stop) {
      bug = new SeededBug(connection);
      this.plan = plan;
      this.stop = stop;
      this.connection = connection;
      this.results = results;
      int size = plan.get("size").asInt();
      for (int number = 0; number < VALUES; number++) {
        keys[number] = ("k" + number).getBytes(StandardCharsets.UTF_8);
        byte[] text = ("k" + number + "#" + number + "|").getBytes(StandardCharsets.UTF_8);
        values[number] = Arrays.copyOf(text, Math.max(size, text.length));
        Arrays.fill(values[number], text.length, values[number].length, (byte) '.');
      }
    }

    void run() throws Exception {
      int rounds = plan.get("rounds").asInt();
      // the first round only warms up: broker, connections and this virtual machine
      for (int round = -1; round < rounds && !stop.requested; round++) {
        for (JsonNode variant : plan.get("variants")) {
          ObjectNode measured = measure(variant, round < 0);
          if (round >= 0) {
            results.note(measured);
          }
        }
      }
    }

    private ObjectNode measure(JsonNode variant, boolean warms) throws Exception {
      ObjectNode own = JSON.createObjectNode();
      own.put("member", plan.get("member").asText()).set("config", variant.get("config"));
      Map<String, String> defaults =
          Map.of(
              "key.serializer", ByteArraySerializer.class.getName(),
              "value.serializer", ByteArraySerializer.class.getName());
      int count = variant.get("count").asInt() / (warms ? 4 : 1);
      AtomicInteger failed = new AtomicInteger();
      ObjectNode measured = JSON.createObjectNode().put("variant", variant.get("name").asText());
      try (KafkaProducer<byte[], byte[]> producer =
          new KafkaProducer<>(properties(connection, own, defaults))) {
        producer.send(record(0)).get();
        long began = System.nanoTime();
        fullSpeed(producer, variant.get("mode").asText(), count, failed);
        measured.put("per_s", count / ((System.nanoTime() - began) / 1e9));
        int paced = warms ? 0 : variant.get("paced").asInt();
        if (paced > 0) {
          double perSecond = variant.get("paced_per_s").asDouble();
          long[] took = steady(producer, paced, perSecond, failed);
          Arrays.sort(took);
          measured.put("median_ms", took[paced / 2] / 1e6);
          measured.put("late_ms", took[Math.min(paced - 1, paced * 99 / 100)] / 1e6);
        }
      }
      return measured.put("failed", failed.get());
    }

    private ProducerRecord<byte[], byte[]> record(int number) {
      int index = number % VALUES;
      return new ProducerRecord<>(plan.get("topic").asText(), keys[index], values[index]);
    }

    private void fullSpeed(
        KafkaProducer<byte[], byte[]> producer, String mode, int count, AtomicInteger failed)
        throws Exception {
      Callback counts =
          (metadata, failure) -> {
            if (failure != null) {
              failed.incrementAndGet();
            }
          };
      Callback callback = mode.equals("forget") ? null : counts;
      boolean waits = mode.equals("wait");
      for (int number = 0; number < count; number++) {
        if (bug.hits("bulk drop")) {
          continue;
        }
        Future<RecordMetadata> answer = producer.send(record(number), callback);
        if (waits) {
          answer.get();
        }
      }
      producer.flush();
    }

    /** Return the ns from each send to its answer. */
    private long[] steady(
        KafkaProducer<byte[], byte[]> producer, int count, double perSecond, AtomicInteger failed)
        throws InterruptedException {
      long[] took = new long[count];
      AtomicInteger answered = new AtomicInteger();
      long began = System.nanoTime();
      for (int number = 0; number < count; number++) {
        long due = began + (long) (number / perSecond * 1e9);
        long ahead = due - System.nanoTime();
        if (ahead > 0) {
          TimeUnit.NANOSECONDS.sleep(ahead);
        }
        int index = number;
        long sent = System.nanoTime();
        producer.send(
            record(number),
            (metadata, failure) -> {
              took[index] = System.nanoTime() - sent;
              if (failure != null) {
                failed.incrementAndGet();
              }
              answered.incrementAndGet();
            });
      }
      // not by flush: it would send what linger.ms still holds back
      while (answered.get() < count) {
        TimeUnit.MILLISECONDS.sleep(1);
      }
      return took;
    }
  }

  /** After these errors the record is certainly not in the log; after any other it may be. */
  private static String outcome(Exception failure) {
    boolean notWritten =
        failure instanceof RecordTooLargeException
            || failure instanceof NotEnoughReplicasException
            || failure instanceof InvalidRequiredAcksException
            || failure instanceof TopicAuthorizationException
            || failure instanceof UnknownTopicOrPartitionException;
    return notWritten ? "fail" : "unknown";
  }

  private static String name(Throwable failure) {
    return failure.getClass().getSimpleName();
  }

  /** The work on a record failed, as planned. */
  private static final class WorkFailed extends RuntimeException {}

  /** Reads records, works on them, and commits as planned. */
  private static final class Reader implements ConsumerRebalanceListener {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final int POOL_SIZE = 8;
    private static final long UNASSIGNED_MAX_NS = TimeUnit.SECONDS.toNanos(30);

    private final JsonNode plan;
    private final History history;
    private final Stop stop;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final String topic;
    private final String commit;
    private final Map<Integer, Long> last = new HashMap<>();
    private final Map<Integer, Long> ends = new HashMap<>();
    private final Set<TopicPartition> held = new HashSet<>();
    private final BlockingQueue<ConsumerRecord<byte[], byte[]>> pool = new LinkedBlockingQueue<>();
    private final List<Thread> threads = new ArrayList<>();
    private final SeededBug bug;
    private volatile boolean poolEnds;
    private int done;
    private int read;
    private int sinceCommit;

    Reader(JsonNode plan, JsonNode connection, History history, Stop stop) {
      this.plan = plan;
      this.history = history;
      this.stop = stop;
      bug = new SeededBug(connection);
      topic = plan.get("topic").asText();
      commit = plan.get("commit").asText();
      Map<String, String> defaults = new HashMap<>();
      defaults.put("key.deserializer", ByteArrayDeserializer.class.getName());
      defaults.put("value.deserializer", ByteArrayDeserializer.class.getName());
      if (!plan.get("group").asText().isEmpty()) {
        defaults.put("group.id", plan.get("group").asText());
      }
      boolean automatic = commit.equals("auto") && !bug.is("no automatic commit");
      defaults.put("enable.auto.commit", Boolean.toString(automatic));
      defaults.put("auto.offset.reset", "earliest");
      defaults.put("fetch.max.wait.ms", "10");
      defaults.put("allow.auto.create.topics", "false");
      defaults.put("max.poll.records", plan.get("batch").asText());
      consumer = new KafkaConsumer<>(properties(connection, plan, defaults));
    }

    void run() throws InterruptedException {
      if (plan.get("assigned").isNull()) {
        List<String> topics = new ArrayList<>(List.of(topic));
        plan.get("also").forEach(one -> topics.add(one.asText()));
        consumer.subscribe(topics, this);
      } else {
        List<TopicPartition> parts = new ArrayList<>();
        plan.get("assigned").forEach(one -> parts.add(new TopicPartition(topic, one.asInt())));
        consumer.assign(parts);
        onPartitionsAssigned(parts);
      }
      if (!plan.get("pool").asText().equals("none")) {
        startPool();
      }
      try {
        loop();
        endPool();
        history.note(history.operation("end", "ok"));
      } catch (WorkFailed failure) {
        history.note(history.operation("fault", "ok").put("note", "fails"));
      } finally {
        endPool();
        if (commit.equals("combined")) {
          commit(true);
        }
        consumer.close();
      }
    }

    private void loop() throws InterruptedException {
      long began = System.nanoTime();
      long quietSince = began;
      while (!stop.requested && !isComplete()) {
        List<ConsumerRecord<byte[], byte[]>> batch = new ArrayList<>();
        try {
          consumer.poll(POLL).forEach(batch::add);
        } catch (InvalidOffsetException failure) {
          history.note(history.operation("read", "fail").put("note", name(failure)));
          if (!plan.get("continue_after_error").asBoolean()) {
            return;
          }
        } catch (UnknownMemberIdException | StaleMemberEpochException failure) {
          // The session expired while the client asked for commits; the next poll joins again.
          history.note(history.operation("fault", "ok").put("note", name(failure)));
        }
        boolean joining = held.isEmpty() && System.nanoTime() - began < UNASSIGNED_MAX_NS;
        if (batch.isEmpty()) {
          noteEnds();
        }
        if (!batch.isEmpty()) {
          handle(batch);
          quietSince = System.nanoTime();
        } else if (joining) {
          quietSince = System.nanoTime();
        } else if (!plan.get("idle_s").isNull()
            && System.nanoTime() - quietSince > plan.get("idle_s").asDouble() * 1e9) {
          return;
        }
      }
    }

    /** Note the partitions whose end this consumer has reached since it last noted one. */
    private void noteEnds() {
      for (TopicPartition part : held) {
        if (consumer.currentLag(part).orElse(1) == 0) {
          noteEnd(part);
        }
      }
    }

    private void noteEnd(TopicPartition part) {
      long end = consumer.position(part);
      if (part.topic().equals(topic)
          && !Long.valueOf(end).equals(ends.put(part.partition(), end))) {
        ObjectNode one = history.operation("position", "ok");
        history.note(one.put("partition", part.partition()).put("offset", end));
      }
    }

    private boolean isComplete() {
      if (!plan.get("count").isNull() && read >= plan.get("count").asInt()) {
        return true;
      }
      if (!plan.get("to_end").asBoolean() || held.isEmpty()) {
        return false;
      }
      if (bug.is("stop early") && read > 2 * SeededBug.RATE) {
        return true;
      }
      boolean complete =
          consumer.endOffsets(held).entrySet().stream()
              .allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
      if (complete) {
        held.forEach(this::noteEnd);
      }
      return complete;
    }

    private void handle(List<ConsumerRecord<byte[], byte[]>> batch) throws InterruptedException {
      batch.removeIf(record -> bug.hits("skip"));
      if (batch.size() > 1 && bug.is("swap reads")) {
        Collections.swap(batch, 0, 1);
      }
      for (ConsumerRecord<byte[], byte[]> record : batch) {
        note("read", record);
        read++;
      }
      if (commit.equals("before the work")) {
        batch.forEach(this::mark);
        commit(true);
        dieIf("after the commit", done + batch.size());
      }
      for (ConsumerRecord<byte[], byte[]> record : batch) {
        if (!threads.isEmpty()) {
          pool.put(record);
          mark(record);
          continue;
        }
        done++;
        dieIf("after the read", done);
        hangIf(done);
        if (plan.get("fails_on").asInt() == done) {
          throw new WorkFailed();
        }
        work(record);
        dieIf("after the work", done);
        mark(record);
        if (!plan.get("commit_every").isNull()
            && ++sinceCommit >= plan.get("commit_every").asInt()) {
          commitAsPlanned();
        }
      }
      TimeUnit.NANOSECONDS.sleep((long) (plan.get("batch_ms").asDouble() * 1e6));
      if (plan.get("commit_every").isNull()) {
        commitAsPlanned();
      }
    }

    private void work(ConsumerRecord<byte[], byte[]> record) throws InterruptedException {
      double workMs = plan.get("work_ms").asDouble();
      if (workMs > 0) {
        // By position: a record takes equally long, whoever reads it.
        Random random = new Random(31L * record.partition() + record.offset());
        TimeUnit.NANOSECONDS.sleep((long) (random.nextDouble() * 2 * workMs * 1e6));
      }
      if (!bug.hits("no work")) {
        note("work", record);
      }
    }

    private void startPool() {
      for (int number = 0; number < POOL_SIZE; number++) {
        Thread thread = new Thread(this::runPool);
        thread.setDaemon(true);
        threads.add(thread);
        thread.start();
      }
    }

    private void runPool() {
      try {
        while (!poolEnds || !pool.isEmpty()) {
          ConsumerRecord<byte[], byte[]> record = pool.poll(100, TimeUnit.MILLISECONDS);
          if (record != null) {
            work(record);
          }
        }
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
      }
    }

    private void endPool() throws InterruptedException {
      poolEnds = true;
      for (Thread thread : threads) {
        thread.join();
      }
    }

    private void mark(ConsumerRecord<byte[], byte[]> record) {
      last.put(record.partition(), record.offset());
    }

    private void commitAsPlanned() {
      sinceCommit = 0;
      switch (commit) {
        case "sync":
          commit(true);
          dieIf("after the commit", done);
          break;
        case "async":
        case "combined":
          commit(false);
          dieIf("after the commit", done);
          break;
        default:
          break;
      }
    }

    private void commit(boolean synchronous) {
      Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
      long next = bug.is("commit too far") ? 2 : 1;
      last.forEach(
          (number, offset) ->
              offsets.put(new TopicPartition(topic, number), new OffsetAndMetadata(offset + next)));
      if (offsets.isEmpty()) {
        return;
      }
      long began = System.nanoTime();
      if (bug.is("commit nothing")) {
        offsets.forEach((part, offset) -> noteCommit(part, offset, "ok", "sync", began));
        return;
      }
      if (!synchronous) {
        offsets.forEach((part, offset) -> noteCommit(part, offset, "unknown", "sent", began));
        consumer.commitAsync(
            offsets,
            (answered, failure) ->
                answered.forEach(
                    (part, offset) ->
                        noteCommit(
                            part,
                            offset,
                            failure == null ? "ok" : "fail",
                            failure == null ? "acknowledged" : name(failure),
                            began)));
        return;
      }
      try {
        if (plan.get("commits_position").asBoolean()) {
          consumer.commitSync();
          offsets.replaceAll((part, marked) -> new OffsetAndMetadata(consumer.position(part)));
        } else {
          consumer.commitSync(offsets);
        }
        offsets.forEach((part, offset) -> noteCommit(part, offset, "ok", "sync", began));
      } catch (KafkaException failure) {
        offsets.forEach((part, offset) -> noteCommit(part, offset, "fail", name(failure), began));
      }
    }

    private void noteCommit(
        TopicPartition part, OffsetAndMetadata offset, String outcome, String note, long began) {
      ObjectNode one = history.operation("commit", outcome);
      one.put("partition", part.partition()).put("offset", offset.offset()).put("note", note);
      history.note(one.put("took_ns", System.nanoTime() - began));
    }

    /** Wait without polling until a file exists. */
    private void hangIf(int number) throws InterruptedException {
      if (plan.get("hangs_on").asInt() != number) {
        return;
      }
      history.note(history.operation("fault", "ok").put("note", "hangs"));
      while (!stop.requested && !Files.exists(Path.of(plan.get("hangs_until").asText()))) {
        Thread.sleep(20);
      }
      history.note(history.operation("fault", "ok").put("note", "returns"));
    }

    private void dieIf(String point, int number) {
      if (plan.path("dies_at").asText("").equals(point)
          && number >= plan.get("dies_on").asInt()
          && !bug.is("no death")) {
        die();
      }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> parts) {
      held.addAll(parts);
      if (plan.get("from_start").asBoolean()) {
        consumer.seekToBeginning(parts);
      }
      note("assign", parts);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> parts) {
      if (commit.equals("combined")) {
        commit(true);
      }
      release(parts);
    }

    /** Nothing is committed: another member may have the partitions already. */
    @Override
    public void onPartitionsLost(Collection<TopicPartition> parts) {
      release(parts);
    }

    private void release(Collection<TopicPartition> parts) {
      held.removeAll(parts);
      parts.forEach(part -> last.remove(part.partition()));
      parts.forEach(part -> ends.remove(part.partition()));
      note("revoke", parts);
    }

    private void note(String kind, Collection<TopicPartition> parts) {
      parts.forEach(
          part -> history.note(history.operation(kind, "ok").put("partition", part.partition())));
    }

    private void note(String kind, ConsumerRecord<byte[], byte[]> record) {
      String text = new String(record.value(), StandardCharsets.UTF_8);
      String named = text.substring(0, text.indexOf('|'));
      int at = named.lastIndexOf('#');
      ObjectNode one = history.operation(kind, "ok");
      one.put("key", named.substring(0, at)).put("number", Integer.parseInt(named.substring(at + 1)));
      one.put("topic", record.topic());
      Header sender = record.headers().lastHeader("sender");
      Header sequence = record.headers().lastHeader("sequence");
      if (sender != null && sequence != null) {
        one.put("sender", new String(sender.value(), StandardCharsets.UTF_8));
        one.put("sequence", Integer.parseInt(new String(sequence.value(), StandardCharsets.UTF_8)));
      }
      one.put("timestamp_ms", record.timestamp());
      history.note(one.put("partition", record.partition()).put("offset", record.offset()));
    }
  }
}
